"""`postroad doctor`: every check of the database, the relays, the broker and the settings. It changes nothing."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import parse_qsl, urlsplit

import msgspec
import typer

from postroad.admin import ConsumerFacts, Level, SecretFile, examine
from postroad.consumer.retention import may_come_again_for
from postroad.doctor.examine import SAMPLE_SECONDS
from postroad.ops.apps import consumer_named
from postroad.ops.options import FOR_ANY_DATABASE, takes
from postroad.ops.parsing import AsJson  # noqa: TC001 - options are read from annotations
from postroad.ops.rendering.findings import findings_text
from postroad.ops.settings import all_settings
from postroad.ops.terminal import as_json as in_json
from postroad.ops.terminal import output
from postroad.permissions import all_may_read
from postroad.safe_text import has_password, without_passwords

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from postroad.admin import Finding
    from postroad.ops.settings import Settings

__all__ = ["doctor"]

_KEY_FILES = ("keyfile", "sslkey", "passfile")


@takes(*FOR_ANY_DATABASE, "direct", "to", "app", "retain", "dead_letter_topic")
def doctor(
    *,
    settings: Settings,
    show_all: Annotated[bool, typer.Option("--all", help="Show what is well, too, with the values found.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check the database, relays, broker, inbox and settings, and show what is wrong and how to fix it.

    Changes nothing. Fails if there is an error; warnings and checks that can't be made do not count.
    """
    findings = asyncio.run(_examine(settings))
    if as_json:
        typer.echo(without_passwords(in_json(_as_json(findings))))
    else:
        typer.echo(findings_text(findings, width=output().width, show_all=show_all))
    if any(each.level is Level.ERROR for each in findings):
        raise typer.Exit(1)


async def _examine(settings: Settings) -> Sequence[Finding]:
    """Of each sink; what is the same for all is found once."""
    findings: list[Finding] = []
    app = settings.command.app
    sinks = [settings.sink(settings.command.sink)] if settings.command.to else list(settings.sinks.values())
    for sink in sinks or [settings.sink(settings.command.sink)]:
        found = await examine(
            settings.needed("database"),
            schema=settings.command.schema,
            direct=settings.command.direct,
            relay=sink.relay,
            to=sink.to,
            broker_settings=None if sink.to is None else sink.for_broker(sink.to),
            consumers=None if app is None else [_consumer_facts(app, settings)],
            files=list(_secret_files(settings)),
            watch_seconds=0.0 if findings else SAMPLE_SECONDS,
        )
        findings += [each for each in found if each not in findings]
    return findings


def _as_json(findings: Sequence[Finding]) -> dict[str, Any]:
    counted = {str(level): sum(each.level is level for each in findings) for level in Level}
    return {"findings": msgspec.to_builtins(findings), "counts": counted}


def _consumer_facts(app: str, settings: Settings) -> ConsumerFacts:
    consumer = consumer_named(app)
    retain, ttl = consumer.retention
    return ConsumerFacts(
        consumer.name,
        None if retain is None else retain.total_seconds(),
        may_come_again_for(settings.relay, ttl) / timedelta(seconds=1),
        consumer.queue_arguments,
        consumer.dead_letter_queue,
    )


def _secret_files(settings: Settings) -> Iterator[SecretFile]:
    """The files that hold secrets: those that settings name, keys in URLs, and the settings' own file."""
    for name, setting in all_settings().items():
        value = settings.value(name)
        if value is None:
            continue
        if setting.kind.secrecy == "file":
            yield _secret_file(value, name)
        elif setting.kind.secrecy == "password" and isinstance(value, str):
            for option, path in parse_qsl(urlsplit(value).query):
                if option in _KEY_FILES:
                    yield _secret_file(path, f"{option} of {name}")
    if settings.file is not None and _holds_secrets(settings):
        yield _secret_file(settings.file, "the settings")


def _holds_secrets(settings: Settings) -> bool:
    """Whether a secret comes from the file: a password, or a URL with one."""
    for name, setting in all_settings().items():
        value = settings.value(name)
        if value is None or settings.origins[name].source != "file":
            continue
        if setting.kind.secrecy == "all" or (setting.kind.secrecy == "password" and has_password(str(value))):
            return True
    return False


def _secret_file(path: Any, what: str) -> SecretFile:
    return SecretFile(str(path), what, all_may_read(path))
