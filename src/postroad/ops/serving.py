"""Which sinks a `postroad relay` serves, from the settings."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from postroad.brokers.registry import broker_for
from postroad.errors import InvalidSetting
from postroad.setting import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from postroad.ops.settings import Settings
    from postroad.ops.sink_settings import SinkSettings

__all__ = ["chosen_sinks"]

_SOURCES: Final = ("default", "file", "environment", "command line")


def chosen_sinks(settings: Settings) -> Sequence[SinkSettings]:
    """The sinks to serve: those of the settings, or of them those that `sink` names; or else the one that the general
    settings describe. A sink without a name of its own, whose destination are a consumer's handlers, has an empty name.

    Raises InvalidSetting for an unknown sink, and for what a relay can't deliver to.
    """
    on_command_line = any(settings.origins[name].source == "command line" for name in ("to", "app"))
    if not settings.sinks or on_command_line:
        chosen: Sequence[SinkSettings] = [_one(settings)]
    else:
        chosen = _several(settings)
    for sink in chosen:
        _check(settings, sink)
    _check_together(settings, chosen)
    _check_dead_letter_sinks(settings, chosen)
    return chosen


def _one(settings: Settings) -> SinkSettings:
    """The sink of the general settings, and its one destination: the later source wins."""
    name = settings.command.sink
    to, app = (_SOURCES.index(settings.origins[each].source) for each in ("to", "app"))
    if to == app and settings.command.app is not None:
        raise InvalidSetting(
            "to and app are both given; a relay has one destination, so run another relay for the other",
            settings=("to", "app"),
        )
    sink = settings.sink(name)
    if settings.command.app is None or to > app:
        if settings.command.to is None:
            raise InvalidSetting(
                "to is not set; give it as --to URL, as POSTROAD_TO, or in postroad.toml; or name a consumer whose "
                "handlers the relay calls, with --app MODULE:NAME"
            )
        return replace(sink, to=settings.command.to, app=None)
    is_default = settings.origins["sink"].source == "default"
    return replace(sink, name="" if is_default else name, to=None, app=settings.command.app)


def _several(settings: Settings) -> Sequence[SinkSettings]:
    for name in ("to", "app"):
        if settings.value(name) is not None:
            raise InvalidSetting(
                f"{name} is set for no sink ({settings.origins[name]}), and there are sinks: "
                f"{', '.join(settings.sinks)}; {name} belongs into the table of one of them, such as [sinks.default]",
                settings=(name,),
            )
    if settings.origins["sink"].source == "default":
        return list(settings.sinks.values())
    return [_named(each.strip(), settings) for each in dict.fromkeys(settings.command.sink.split(","))]


def _named(name: str, settings: Settings) -> SinkSettings:
    if name not in settings.sinks:
        guess = nearest(name, settings.sinks)
        hint = f"did you mean {guess!r}? " if guess else ""
        raise InvalidSetting(
            f"sink is {name!r}, and the settings have no such sink; {hint}they have {', '.join(settings.sinks)}",
            settings=("sink",),
        )
    return settings.sinks[name]


def _check(settings: Settings, sink: SinkSettings) -> None:
    of = f"sinks.{sink.name}." if sink.name in settings.sinks else ""
    if (sink.to is None) is (sink.app is None):
        both = "both given" if sink.to is not None else "both missing"
        raise InvalidSetting(f"{of}to and {of}app are {both}; a sink has one destination: give one of them")
    if sink.to is not None and broker_for(sink.to, "to").in_process:
        raise InvalidSetting(
            f"{of}to is {sink.to}, whose queues end with this process, and every message with them; "
            "it is for tests and for a relay inside an application",
            settings=("to",),
        )


def _check_together(settings: Settings, sinks: Sequence[SinkSettings]) -> None:
    """What several sinks of one process can't have in common."""
    if len(sinks) < 2:
        return
    for what, values in (
        ("lock_id", [each.relay.lock_id for each in sinks]),
        ("app", [each.app for each in sinks]),
    ):
        for value in _twice(values):
            names = " and ".join(repr(each.name) for each, its in zip(sinks, values, strict=True) if its == value)
            raise InvalidSetting(
                f"{what} is {value!r} for the sinks {names}; no two sinks can have the same one", settings=(what,)
            )


def _check_dead_letter_sinks(settings: Settings, sinks: Sequence[SinkSettings]) -> None:
    """Refuse a sink whose dead letters would come back to it. One that these settings do not have may be served by
    another process; the database knows.
    """
    for sink in sinks:
        way, other = [sink.name], sink.relay.dead_letter_sink
        while other is not None and other not in way:
            way.append(other)
            other = settings.sinks[other].relay.dead_letter_sink if other in settings.sinks else None
        if other is not None:
            circle = " to ".join(map(repr, [*way, other]))
            raise InvalidSetting(
                f"dead_letter_sink goes in a circle: from {circle}; the last sink of a way must have none",
                settings=("dead_letter_sink",),
            )


def _twice(values: Iterable[object]) -> list[object]:
    return [value for value, number in Counter(values).items() if value is not None and number > 1]
