"""`postroad health`: ask a relay or a consumer on this machine whether it is ready, or live; for exec probes."""

from __future__ import annotations

import http.client
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from postroad.errors import NotFound
from postroad.metrics.probes import Health
from postroad.ops.options import takes
from postroad.ops.parsing import AsJson  # noqa: TC001 - options are read from annotations
from postroad.ops.rendering.text import one_line
from postroad.ops.terminal import as_json as in_json

if TYPE_CHECKING:
    from postroad.ops.settings import Settings

__all__ = ["health"]

SECONDS: Final = 5.0
LARGEST: Final = 1 << 20
_EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - what is served on all addresses is asked on one


@takes("metrics_port", "metrics_host", "log_level", "log_format")
def health(
    *,
    settings: Settings,
    live: Annotated[bool, typer.Option("--live", help="Ask whether it is live (/livez), not ready (/readyz).")] = False,
    as_json: AsJson = False,
) -> None:
    """Ask the relay or consumer that serves metrics on this port whether it is ready. Fails if it is not.

    For the exec probes of an orchestrator that can't ask over HTTP.
    """
    found = _ask(settings.command.metrics_host, settings.needed("metrics_port"), "/livez" if live else "/readyz")
    if as_json:
        typer.echo(in_json(found))
    else:
        state = "live" if live else "ready"
        typer.echo(f"{state if found.ok else f'not {state}'}: {one_line(str(found))}")
    raise typer.Exit(0 if found.ok else 1)


def _ask(host: str, port: int, path: str) -> Health:
    """The answer of the process. Raises NotFound if there is none."""
    connection = http.client.HTTPConnection(_EVERYWHERE.get(host, host), port, timeout=SECONDS)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return msgspec.json.decode(response.read(LARGEST), type=Health)
    except (OSError, http.client.HTTPException) as error:
        why = str(error) or type(error).__name__
        raise NotFound(f"no relay or consumer answers on {host}:{port}: {why}") from error
    except msgspec.MsgspecError:
        raise NotFound(f"what answers on {host}:{port}{path} is no postroad") from None
    finally:
        connection.close()
