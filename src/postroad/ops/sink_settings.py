"""The settings of each sink: `[sinks.NAME]` in the file, and `POSTROAD_SINKS_NAME_…`.

A sink has the general settings, and its own in their place. Which source a value comes from counts before whether it is
the sink's own: file, then environment, then command line. What concerns the whole process, such as the database, or the
whole log, such as `retain`, is general only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from postroad.brokers.registry import all_brokers, broken_brokers, broker_for
from postroad.config import CommandSettings, RelaySettings
from postroad.errors import InvalidSetting
from postroad.kinds import NAME
from postroad.setting import nearest
from postroad.sink_filter import SinkFilter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from postroad.setting import Setting, SettingsGroup

__all__ = ["TABLE", "VARIABLES", "SinkSettings", "check_names", "settings_of_sinks", "sinks_of_file", "variable_of"]

TABLE: Final = "sinks"
VARIABLES: Final = "POSTROAD_SINKS_"
_OF_THE_SINK: Final = frozenset({"to", "app"})
"""Of the settings of the command line, those that a sink has."""
_OF_THE_LOG: Final = frozenset({"retain", "cleanup_interval"})
"""Of the settings of a relay, those that can't differ between sinks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """What one sink of this process is: its destination, its filter, and how its relay works."""

    name: str
    to: str | None = None
    app: str | None = None
    filter: SinkFilter = field(default_factory=SinkFilter)
    relay: RelaySettings = field(default_factory=RelaySettings)
    brokers: Mapping[str, SettingsGroup] = field(default_factory=dict)
    """The settings for publishing of each broker, by the broker's name."""
    own: Mapping[str, object] = field(default_factory=dict)
    """The settings that are its own, and not the general ones, by name: where each comes from."""

    def value(self, name: str) -> Any:
        """A setting's value, by its name, such as `topics` or `rabbitmq.exchange`."""
        table, _, key = name.rpartition(".")
        groups = (self.brokers[table],) if table else (self.relay, self.filter, self)
        return next(getattr(group, key) for group in groups if hasattr(group, key))

    def for_broker(self, url: str) -> SettingsGroup | None:
        """The settings for publishing to the broker of this URL. Raises InvalidSetting for an unknown scheme."""
        return self.brokers.get(broker_for(url, "to").name)


@cache
def settings_of_sinks() -> dict[str, Setting]:
    """Every setting that a sink can have, by its name, such as `to`, `topics` or `rabbitmq.exchange`."""
    own = [each for each in CommandSettings.declared() if each.key in _OF_THE_SINK]
    own += [*SinkFilter.declared(), *(each for each in RelaySettings.declared() if each.key not in _OF_THE_LOG)]
    brokers = [each for broker in all_brokers() for each in broker.publisher_settings.declared(broker.name)]
    return {each.name: each for each in (*own, *brokers)}


def sinks_of_file(value: Any, path: object) -> Iterator[tuple[str, str, Any]]:
    """The sink, the setting and the value, of all that stands in the tables of sinks."""
    if not isinstance(value, dict) or not all(isinstance(each, dict) for each in value.values()):
        raise InvalidSetting(f"sinks must have a table for each sink, such as [sinks.orders] (file {path})")
    for sink, table in value.items():
        _checked_name(sink, f"file {path}")
        for key, each in table.items():
            if key in broken_brokers():
                continue  # its settings can't be checked; using its scheme is the error that says so
            if key not in _broker_tables():
                yield sink, _known(sink, key, f"file {path}"), each
            elif not isinstance(each, dict):
                raise InvalidSetting(
                    f"sinks.{sink}.{key} is a value; it must be a table, [sinks.{sink}.{key}] (file {path})"
                )
            else:
                yield from (
                    (sink, _known(sink, f"{key}.{inner}", f"file {path}"), given) for inner, given in each.items()
                )


def variable_of(variable: str, sinks: Iterable[str]) -> tuple[str, Setting]:
    """The sink and the setting that a variable is for. One of these sinks, if it fits; otherwise another one.

    Raises InvalidSetting if no setting's name is at the end of the variable's.
    """
    rest = variable.removeprefix(VARIABLES)
    fitting = [each for each in settings_of_sinks().values() if rest.endswith(f"_{_in_variables(each.name)}")]
    named = {_in_variables(sink): sink for sink in sinks}
    found = [(rest[: -len(_in_variables(each.name)) - 1], each) for each in fitting]
    for sink, setting in sorted(found, key=lambda each: (each[0] not in named, len(each[0]))):
        if re.fullmatch("[A-Z0-9][A-Z0-9_]*", sink):
            return named.get(sink, sink.lower()), setting
    guess = nearest(rest.partition("_")[2], [_in_variables(each) for each in settings_of_sinks()])
    hint = f"; did you mean {VARIABLES}{rest.partition('_')[0]}_{guess}?" if guess else ""
    raise InvalidSetting(
        f"there is no setting of a sink for the variable {variable}; it must be {VARIABLES}, the sink's name, _, and "
        f"the name of a setting{hint}"
    )


def check_names(sinks: Iterable[str]) -> None:
    """Refuse two sinks whose variables would have the same names."""
    names: dict[str, str] = {}
    for sink in sinks:
        other = names.setdefault(_in_variables(sink), sink)
        if other != sink:
            raise InvalidSetting(
                f"there are two sinks of one name, {other!r} and {sink!r}: the variables of both would begin with "
                f"{VARIABLES}{_in_variables(sink)}_; rename one"
            )


@cache
def _broker_tables() -> frozenset[str]:
    return frozenset(each.table for each in settings_of_sinks().values() if each.table)


def _checked_name(sink: str, where: str) -> None:
    if NAME.validate(sink) is None or "," in sink:
        raise InvalidSetting(f"a sink is called {sink!r}; it must be {NAME.expected} or commas ({where})")


def _known(sink: str, key: str, where: str) -> str:
    if key in settings_of_sinks():
        return key
    if key in {each.key for each in (*CommandSettings.declared(), *RelaySettings.declared())}:
        raise InvalidSetting(
            f"{key} is not a setting of a single sink ({sink!r}); it stands above all tables ({where})"
        )
    guess = nearest(key, [*settings_of_sinks(), *_broker_tables()])
    hint = f"did you mean {guess!r}?" if guess else "docs/settings.md lists all settings"
    raise InvalidSetting(f"sink {sink!r} has no setting {key!r}; {hint} ({where})")


def _in_variables(name: str) -> str:
    return re.sub(r"[^A-Z0-9]", "_", name.upper())
