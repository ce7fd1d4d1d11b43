"""Whether a command makes spans of OpenTelemetry: if its process has an SDK, and the setting `tracing` is not off.

`opentelemetry-instrument`, which starts the command, sets an SDK up; or the module of `--app` does when it is imported.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from postroad.otel import Tracing

__all__ = ["flush_spans", "tracing_for"]

FLUSH_MILLISECONDS = 2000


def tracing_for(setting: Literal["auto", "deliver", "off"]) -> Tracing | None:
    """What makes the spans of a relay or a consumer; None: there are none. Call it after the app was imported."""
    if setting == "off" or not _is_set_up():
        return None
    from postroad.otel import Tracing

    return Tracing(deliver=setting == "deliver")


def flush_spans() -> None:
    """Export what the SDK still has: for a process that ends without calling what was registered to be called then."""
    if _is_set_up():
        from opentelemetry.trace import get_tracer_provider

        if (flush := getattr(get_tracer_provider(), "force_flush", None)) is not None:
            flush(FLUSH_MILLISECONDS)


def _is_set_up() -> bool:
    """Whether a tracer provider is set. Where OpenTelemetry was never imported, none is."""
    if "opentelemetry.trace" not in sys.modules:
        return False
    from opentelemetry.trace import ProxyTracerProvider, get_tracer_provider

    return not isinstance(get_tracer_provider(), ProxyTracerProvider)
