"""Loads settings from the file, then `POSTROAD_*` variables, then the command line; the later wins.

Only this module reads the environment and the file. Each value is checked by the kind that its setting is declared
with, also a value that a later source replaces; an error names the setting and its source, and never shows a secret.
"""

from __future__ import annotations

import os
import re
import tomllib
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from urllib.parse import parse_qsl, quote, urlsplit

from postroad.brokers.registry import all_brokers, broken_brokers, broker_for
from postroad.config import CommandSettings, RelaySettings
from postroad.errors import InvalidSetting
from postroad.events import CertificateUnverified, FileReadable, PasswordFileReadable, PasswordInArguments
from postroad.kinds import duration_text
from postroad.ops.sink_settings import TABLE, VARIABLES, SinkSettings, check_names, sinks_of_file, variable_of
from postroad.permissions import all_may_read
from postroad.safe_text import has_password, without_passwords
from postroad.setting import nearest
from postroad.sink_filter import SinkFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from postroad.events import Event
    from postroad.setting import Setting, SettingsGroup

__all__ = ["DEFAULT_FILE", "FILE_VARIABLE", "Origin", "Settings", "all_settings", "shown", "tables", "ways_to_set"]

DEFAULT_FILE: Final = "postroad.toml"
FILE_VARIABLE: Final = "POSTROAD_CONFIG"

_NO_SETTINGS: Final = frozenset({FILE_VARIABLE, "POSTROAD_DEBUG"})
# Kubernetes gives every container of a namespace variables with the addresses of its services, which begin with their
# names. A service may be called postroad, or postroad-db.
_OF_KUBERNETES: Final = re.compile(
    r"POSTROAD_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)"
)
# POSTROAD_METRICS_PORT is a setting, and what Kubernetes gives for a service called postroad-metrics: its address.
_ADDRESS: Final = re.compile(r"(tcp|udp|sctp)://")


# -- which settings there are ----------------------------------------------------------------------------------------


@cache
def tables() -> dict[str, tuple[type[SettingsGroup], ...]]:
    """Which settings are in which table of the file; those without a name stand above all tables.

    Each broker that is installed and has settings for publishing has a table of its own.
    """
    brokers = {each.name: (each.publisher_settings,) for each in all_brokers() if each.publisher_settings.declared()}
    return {"": (CommandSettings, RelaySettings, SinkFilter), **brokers}


@cache
def all_settings() -> dict[str, Setting]:
    """Every setting, by its name, such as `lanes` or `rabbitmq.exchange`."""
    found = [each for table, groups in tables().items() for group in groups for each in group.declared(table)]
    return {setting.name: setting for setting in found}


class Origin(NamedTuple):
    """Where a value comes from."""

    source: Literal["default", "file", "environment", "command line"]
    where: str | None = None
    """The file or the variable."""

    def __str__(self) -> str:
        return self.source if self.where is None else f"{self.source} {self.where}"


DEFAULT: Final = Origin("default")
COMMAND_LINE: Final = Origin("command line")


class Given(NamedTuple):
    """A value and its source."""

    value: Any
    origin: Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings, validated, and where each comes from."""

    command: CommandSettings = field(default_factory=CommandSettings)
    relay: RelaySettings = field(default_factory=RelaySettings)
    filter: SinkFilter = field(default_factory=SinkFilter)
    brokers: Mapping[str, SettingsGroup] = field(default_factory=lambda: _brokers({}))
    """The settings for publishing of each broker, by the broker's name."""
    file: Path | None = None
    origins: Mapping[str, Origin] = field(default_factory=dict)
    warnings: Sequence[Event] = ()
    """Settings that are valid but unsafe."""
    sinks: Mapping[str, SinkSettings] = field(default_factory=dict)
    """The sinks that the file or the environment has, each with all its settings."""

    @classmethod
    def load(
        cls,
        options: Mapping[str, Any] | None = None,
        *,
        file: str | Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Settings:
        """Load the settings. `options` are those of the command line, by name, as texts.

        Without `file`, it is the one that the environment names, or postroad.toml in the working directory if there is
        one. Without `environment`, it is the process's. Raises InvalidSetting.
        """
        environment = os.environ if environment is None else environment
        path = _file(file, environment)
        general_in_file, sinks_in_file = ({}, {}) if path is None else _from_file(path)
        sinks_in_environment = _sinks_of_environment(environment, sinks_in_file)
        in_file, in_environment = _checked(general_in_file), _checked(_from_environment(environment))
        in_options = _checked(_from_options(options or {}))
        given = _merged(in_file, in_environment, in_options)
        command, relay, filter = (_built("", group, given) for group in tables()[""])
        check_names([*sinks_in_file, *sinks_in_environment])
        of_sinks = {
            name: _merged(
                _without_destination(in_file),
                _checked(sinks_in_file.get(name, {}), f"sinks.{name}."),
                _without_destination(in_environment),
                _checked(sinks_in_environment.get(name, {}), f"sinks.{name}."),
                in_options,
            )
            for name in dict.fromkeys((*sinks_in_file, *sinks_in_environment))
        }
        warnings = [
            *_warnings_of_file(path, in_file, *sinks_in_file.values()),
            *_warnings_of_options(in_options),
            *_warnings_of_password_files(given),
            *_warnings_of_urls(given),
            *(each for its in of_sinks.values() for each in _warnings_of_destination(its)),
        ]
        return cls(
            command=_with_password(command),
            relay=relay,
            filter=filter,
            brokers=_brokers(given),
            sinks={
                name: _sink(name, its, own={**sinks_in_file.get(name, {}), **sinks_in_environment.get(name, {})})
                for name, its in of_sinks.items()
            },
            file=path,
            origins={name: given[name].origin if name in given else DEFAULT for name in all_settings()},
            warnings=warnings,
        )

    def value(self, name: str) -> Any:
        """A setting's value, by its name, such as `lanes` or `rabbitmq.exchange`."""
        setting = all_settings()[name]
        if setting.table:
            return getattr(self.brokers[setting.table], setting.key)
        groups = (self.relay, self.filter, self.command)
        return next(getattr(group, setting.key) for group in groups if hasattr(group, setting.key))

    def needed(self, name: str) -> Any:
        """A setting's value. Raises InvalidSetting when it has none."""
        value = self.value(name)
        if value is None:
            setting = all_settings()[name]
            raise InvalidSetting(
                f"{name} is not set; give it as {setting.option} {setting.kind.metavar}, as {setting.variable}, "
                f"or in {DEFAULT_FILE}"
            )
        return value

    def for_broker(self, url: str) -> SettingsGroup | None:
        """The general settings for publishing to this URL's broker. Raises InvalidSetting for an unknown scheme."""
        return self.brokers.get(broker_for(url, "to").name)

    def sink(self, name: str) -> SinkSettings:
        """The settings of a sink: its own, or the general ones if it has none."""
        command = self.command
        general = SinkSettings(
            name=name, to=command.to, app=command.app, filter=self.filter, relay=self.relay, brokers=self.brokers
        )
        return self.sinks.get(name, general)


_UNVERIFIED: Final = frozenset({"allow", "prefer", "require"})


def shown(setting: Setting, value: Any) -> str | int | None:
    """A setting's value with secrets masked."""
    if value is None:
        return None
    if setting.kind.secrecy == "all":
        return "***"
    if setting.kind.secrecy == "password":
        return without_passwords(value)
    if isinstance(value, tuple):
        return ",".join(value)
    return duration_text(value) if isinstance(value, timedelta) else value


def ways_to_set(names: Sequence[str]) -> str:
    """How these settings can be set, for the end of an error."""
    return "set by " + ", ".join(all_settings()[name].ways for name in names)


def _checked(given: Mapping[str, Given], prefix: str = "") -> dict[str, Given]:
    return {name: Given(_check(all_settings()[name], each, prefix), each.origin) for name, each in given.items()}


def _check(setting: Setting, given: Given, prefix: str) -> Any:
    try:
        return setting.kind.check(prefix + setting.name, given.value)
    except InvalidSetting as error:
        ways = "" if prefix else f"; {ways_to_set([setting.name])}"
        raise InvalidSetting(f"{error} ({given.origin}{ways})") from None


def _merged(*sources: Mapping[str, Given]) -> dict[str, Given]:
    merged: dict[str, Given] = {}
    for source in sources:
        replaced = _secrets_of_brokers(source) | _dead_letters(source)
        merged = {name: each for name, each in merged.items() if name not in replaced}
        merged |= source
    return merged


def _secrets_of_brokers(source: Mapping[str, Given]) -> set[str]:
    """The secrets, and the files with one, of each broker for which the source has any.

    A source that gives a password replaces the password file of an earlier source, and the other way round.
    """
    secrets = [each for each in all_settings().values() if each.table and each.kind.secrecy in {"all", "file"}]
    given = {each.table for each in secrets if each.name in source}
    return {each.name for each in secrets if each.table in given}


def _dead_letters(source: Mapping[str, Given]) -> set[str]:
    """A source that says where copies of dead messages go replaces what an earlier source says."""
    both = {"dead_letter_topic", "dead_letter_sink"}
    return both if both & set(source) else set()


def _built(table: str, kind: Any, given: Mapping[str, Given]) -> Any:
    prefix = f"{table}." if table else ""
    named = {each.name: given[prefix + each.name].value for each in fields(kind) if prefix + each.name in given}
    try:
        return kind(**named)
    except InvalidSetting as error:  # settings that contradict each other
        ways = ways_to_set([prefix + name for name in error.settings])
        raise InvalidSetting(f"[{table}]: {error} ({ways})" if table else f"{error} ({ways})") from None


def _sink(name: str, given: Mapping[str, Given], *, own: Mapping[str, Given]) -> SinkSettings:
    if "dead_letter_sink" not in own:  # that of all sinks is meant for all others
        given = {key: each for key, each in given.items() if (key, each.value) != ("dead_letter_sink", name)}
    try:
        _, relay, filter = (_built("", group, given) for group in tables()[""])
        brokers = _brokers(given)
    except InvalidSetting as error:
        raise InvalidSetting(f"sink {name!r}: {error}") from None
    to, app = (given[each].value if each in given else None for each in ("to", "app"))
    origins = {each: given[each].origin for each in own if each in given}
    return SinkSettings(name=name, to=to, app=app, filter=filter, relay=relay, brokers=brokers, own=origins)


def _without_destination(given: Mapping[str, Given]) -> dict[str, Given]:
    """Every sink has its own, unless the command line gives one."""
    return {name: each for name, each in given.items() if name not in {"to", "app"}}


def _brokers(given: Mapping[str, Given]) -> dict[str, SettingsGroup]:
    return {table: _built(table, group, given) for table, (group, *_) in tables().items() if table}


# -- the file --------------------------------------------------------------------------------------------------------


def _file(given: str | Path | None, environment: Mapping[str, str]) -> Path | None:
    if given is not None:
        return Path(given)
    if FILE_VARIABLE in environment:
        return Path(environment[FILE_VARIABLE])
    return Path(DEFAULT_FILE) if Path(DEFAULT_FILE).is_file() else None


def _from_file(path: Path) -> tuple[dict[str, Given], dict[str, dict[str, Given]]]:
    """The general settings, and those of each sink."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidSetting(f"config is {str(path)!r}, which cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidSetting(f"config is {str(path)!r}, which is not in UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidSetting(f"config is {str(path)!r}, which is no TOML: {error}") from None
    origin = Origin("file", str(path))
    tables_of_sinks = document.pop(TABLE, {})
    found = list(sinks_of_file(tables_of_sinks, path))
    sinks: dict[str, dict[str, Given]] = {name: {} for name in tables_of_sinks}
    for sink, name, value in found:
        sinks[sink][name] = Given(value, origin)
    return {name: Given(value, origin) for name, value in _flat(document, path)}, sinks


def _flat(document: Mapping[str, Any], path: Path) -> Iterable[tuple[str, Any]]:
    for key, value in document.items():
        if key in broken_brokers():
            continue  # its settings can't be checked; using its scheme is the error that says so
        if key not in tables():
            yield _known_in_file(key, path), value
        elif not isinstance(value, dict):
            raise InvalidSetting(f"{key} is a value; it must be a table, [{key}] (file {path})")
        else:
            for inner, each in value.items():
                yield _known_in_file(f"{key}.{inner}", path), each


def _known_in_file(name: str, path: Path) -> str:
    if name in all_settings():
        return name
    table, _, key = name.rpartition(".")
    if table and key in all_settings():
        hint = f"{key!r} must stand above the line [{table}]"
    else:
        hint = _did_you_mean(name, lambda setting: setting.name, also=filter(None, tables()))
    raise InvalidSetting(f"there is no setting {name!r}; {hint} (file {path})")


def _warnings_of_file(path: Path | None, *given: Mapping[str, Given]) -> Iterable[Event]:
    if path is None:
        return
    if all_may_read(path) and any(_holds_secret(name, each.value) for some in given for name, each in some.items()):
        yield FileReadable(file=str(path))


def _warnings_of_password_files(given: Mapping[str, Given]) -> Iterable[Event]:
    for name, setting in all_settings().items():
        if name in given and setting.kind.secrecy == "file" and all_may_read(given[name].value):
            yield PasswordFileReadable(setting=name, file=given[name].value)


def _warnings_of_urls(given: Mapping[str, Given]) -> Iterable[Event]:
    for name in ("database", "direct"):
        url = urlsplit(given[name].value if name in given else "")
        options = dict(parse_qsl(url.query))
        mode = options.get("sslmode", "")
        checked = mode == "require" and "sslrootcert" in options  # then drivers verify the authority, not the name
        if url.scheme.startswith("postgres") and mode in _UNVERIFIED and not checked:
            yield CertificateUnverified(setting=name, option=f"sslmode={mode}", instead="sslmode=verify-full")
    yield from _warnings_of_destination(given)


def _warnings_of_destination(given: Mapping[str, Given]) -> Iterable[Event]:
    if "to" in given:
        with suppress(InvalidSetting):  # a URL that has no broker is an error only where it is used
            yield from broker_for(given["to"].value).url_warnings("to", given["to"].value)


def _with_password(settings: CommandSettings) -> CommandSettings:
    """The URLs of the database, with the password from its file."""
    file = settings.database_password_file
    if file is None:
        return settings
    try:
        password = quote(Path(file).read_text(encoding="utf-8").rstrip("\r\n"), safe="")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSetting(f"database_password_file is {file!r}, which cannot be read: {error}") from None
    urls = {name: url for name in ("database", "direct") if (url := getattr(settings, name)) is not None}
    for name, url in urls.items():
        if not url.startswith("postgres"):
            raise InvalidSetting(f"database_password_file is {file!r}, and {name} is no PostgreSQL database")
        if has_password(url):
            raise InvalidSetting(f"database_password_file is {file!r}, and {name} has a password; give one of them")
        scheme, _, rest = url.partition("://")
        end = re.search(r"[/?]|$", rest)
        place = rest[: end.start()] if end else rest
        user, _, hosts = place.rpartition("@")
        urls[name] = f"{scheme}://{user}:{password}@{hosts}{rest[len(place) :]}"
    return replace(settings, **urls)


# -- the environment and the command line ----------------------------------------------------------------------------


def _from_environment(environment: Mapping[str, str]) -> dict[str, Given]:
    known = {setting.variable: setting for setting in all_settings().values()}
    broken = tuple(f"POSTROAD_{scheme.upper()}_" for scheme in broken_brokers())
    given = {}
    for variable, text in environment.items():
        if not variable.startswith("POSTROAD_") or variable in _NO_SETTINGS or variable.startswith(VARIABLES):
            continue
        if _OF_KUBERNETES.fullmatch(variable) and (variable not in known or _ADDRESS.match(text)):
            continue
        if variable.startswith(broken) and variable not in known:
            continue
        if variable not in known:
            hint = _did_you_mean(variable, lambda setting: setting.variable, also=_NO_SETTINGS)
            raise InvalidSetting(f"there is no setting for the variable {variable}; {hint}")
        setting = known[variable]
        given[setting.name] = Given(setting.kind.parse(text), Origin("environment", variable))
    return given


def _sinks_of_environment(environment: Mapping[str, str], known: Iterable[str]) -> dict[str, dict[str, Given]]:
    """The settings of sinks, also of those that the file does not know."""
    sinks: dict[str, dict[str, Given]] = {}
    for variable, text in environment.items():
        if not variable.startswith(VARIABLES) or (_OF_KUBERNETES.fullmatch(variable) and _ADDRESS.match(text)):
            continue
        sink, setting = variable_of(variable, known)
        sinks.setdefault(sink, {})[setting.name] = Given(setting.kind.parse(text), Origin("environment", variable))
    return sinks


def _from_options(options: Mapping[str, Any]) -> dict[str, Given]:
    given = {}
    for name, value in options.items():
        if name not in all_settings():
            raise InvalidSetting(f"there is no setting {name!r}; {_did_you_mean(name, lambda setting: setting.name)}")
        read = all_settings()[name].kind.parse(value) if isinstance(value, str) else value
        given[name] = Given(read, COMMAND_LINE)
    return given


def _warnings_of_options(given: Mapping[str, Given]) -> Iterable[Event]:
    for name, each in given.items():
        setting = all_settings()[name]
        if setting.option and _holds_secret(name, each.value):
            instead = _password_file_for(name, each.value) or "the file with settings"
            yield PasswordInArguments(option=setting.option, instead=f"{setting.variable} or {instead}")


def _password_file_for(name: str, url: str) -> str | None:
    """The setting that names a file with the password of this URL."""
    if name != "to":
        return "database_password_file"
    with suppress(InvalidSetting):
        broker = broker_for(url).name
        return next((n for n, s in all_settings().items() if s.table == broker and s.kind.secrecy == "file"), None)
    return None


def _holds_secret(name: str, value: Any) -> bool:
    secrecy = all_settings()[name].kind.secrecy
    return secrecy == "all" or (secrecy == "password" and has_password(value))


def _did_you_mean(name: str, spelled: Callable[[Setting], str], also: Iterable[str] = ()) -> str:
    """The nearest name, as it is spelled in that place; the name of a setting's table may have been forgotten."""
    names = {_simple(each): each for each in also}
    for setting in all_settings().values():
        names[_simple(setting.key)] = names[_simple(setting.name)] = spelled(setting)
    near = nearest(_simple(name), names)
    return f"did you mean {names[near]!r}?" if near else "`postroad config` lists all settings"


def _simple(name: str) -> str:
    return name.lower().removeprefix("postroad_").replace("-", "_").replace(".", "_")
