"""`postroad config`: show the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from postroad.ops.options import ALL, takes
from postroad.ops.parsing import AsJson  # noqa: TC001 - options are read from annotations
from postroad.ops.settings import all_settings, shown
from postroad.ops.terminal import as_json as in_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroad.ops.settings import Settings
    from postroad.ops.sink_settings import SinkSettings

__all__ = ["config"]


@takes(*ALL)
def config(*, settings: Settings, as_json: AsJson = False) -> None:
    """Show every setting, its value and where it comes from. Takes the same options as `postroad relay`."""
    if as_json:
        typer.echo(in_json(_config_report(settings)))
    else:
        _show_config(settings)


def _config_report(settings: Settings) -> dict[str, object]:
    return {
        "file": None if settings.file is None else str(settings.file),
        "settings": {
            name: {
                "value": shown(setting, settings.value(name)),
                "from": settings.origins[name].source,
                "where": settings.origins[name].where,
                "used": setting.used,
            }
            for name, setting in all_settings().items()
        },
        "sinks": {name: {each: value for each, value, _ in _own(sink)} for name, sink in settings.sinks.items()},
    }


def _own(sink: SinkSettings) -> Iterator[tuple[str, str | int | None, str]]:
    """The settings of a sink that it has itself, with their values and where they come from."""
    for name, origin in sink.own.items():
        setting = all_settings()[name]
        yield name, shown(setting, sink.value(name)), str(origin)


def _show_config(settings: Settings) -> None:
    """Aligned, but never cut or wrapped, so that it can be searched line by line."""
    rows = []
    for name, setting in all_settings().items():
        value = shown(setting, settings.value(name))
        note = "" if setting.used else " (checked, not used yet)"
        rows.append((name, "(not set)" if value is None else str(value), f"{settings.origins[name]}{note}"))
    for sink in settings.sinks.values():
        rows += [(f"sinks.{sink.name}.{name}", str(value), origin) for name, value, origin in _own(sink)]
    names, values = (max(len(row[column]) for row in rows) for column in (0, 1))
    for name, text, origin in rows:
        typer.echo(f"{name:<{names}}  {text:<{values}}  {origin}")
