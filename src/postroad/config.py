"""Settings are values that check themselves when they are built. Nothing here reads the environment.

A setting is declared once, as a field: its default, its kind (what is right for it), and a line that says what it does.
The options of the command line, `postroad config` and docs/settings.md are made of these declarations.
"""
# ruff: noqa: RUF009 - `_setting` is dataclasses.field, with a form to fill in

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit

from postroad.errors import InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "DEFAULT_SCHEMA",
    "TABLES",
    "CommandSettings",
    "Duration",
    "Kind",
    "RabbitMQSettings",
    "RelaySettings",
    "Setting",
    "all_settings",
    "checked_schema",
    "duration",
    "duration_text",
    "is_url",
]

DEFAULT_SCHEMA: Final = "postroad"

# -- durations -------------------------------------------------------------------------------------------------------

Duration = timedelta | str
"""A timedelta, or a number with its unit: "50ms", "5s", "10m", "12h", "7d"."""

_UNITS: Final = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)")
_LONGEST: Final = timedelta(days=36_500)
_A_DURATION: Final = "a number with its unit, such as '50ms', '5s', '10m', '12h', '7d'"


def duration(name: str, value: Any) -> timedelta:
    """Read a duration; 0 needs no unit, every other number does."""
    found = _duration(value)
    if found is None:
        raise _wrong(name, value, _A_DURATION)
    return found


def duration_text(value: timedelta) -> str:
    """A duration as a person would write it. `duration` reads it back."""
    for unit, name in reversed(_UNITS.items()):
        count, rest = divmod(value, timedelta(**{name: 1}))
        if count and not rest:
            return f"{count}{unit}"
    return f"{value / timedelta(milliseconds=1):.3f}".rstrip("0").rstrip(".") + "ms" if value else "0"


def _duration(value: Any) -> timedelta | None:
    found = None
    if isinstance(value, timedelta):
        found = value
    elif not isinstance(value, bool) and value in (0, "0"):
        found = timedelta(0)
    elif isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        try:
            found = timedelta(**{_UNITS[match[2]]: float(match[1])})
        except OverflowError:
            return None
    return found if found is not None and timedelta(0) <= found <= _LONGEST else None


# -- kinds: what is right for a setting ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What is right for a setting, in words and as a check."""

    right: str
    """What follows "it must be"."""
    kept: Callable[[Any], Any]
    """The value as it is kept, or None if it is wrong."""
    read: Callable[[str], Any] = str
    """The value of a text from the environment or the command line, which know no types. Not checked yet."""
    metavar: str = "TEXT"
    """What an option's help calls the value."""
    hides: Literal["nothing", "password", "all"] = "nothing"
    """What nobody may see of the value: it may hold a password, or be one. No error shows a value that hides any."""

    def check(self, name: str, value: Any) -> Any:
        """The value as it is kept. Raises InvalidSetting."""
        kept = self.kept(value)
        if kept is None:
            if self.hides != "nothing":
                raise InvalidSetting(
                    f"{name} is wrong (it is not shown, for it may be secret); it must be {self.right}"
                )
            raise _wrong(name, value, self.right)
        return kept


def _wrong(name: str, value: Any, right: str) -> InvalidSetting:
    shown = "a table" if isinstance(value, dict) else "a list" if isinstance(value, list) else repr(value)
    return InvalidSetting(f"{name} is {shown}; it must be {right}")


def _whole(least: int, most: int) -> Kind:
    return Kind(
        right=f"a whole number from {least:,} to {most:,}",
        kept=lambda value: value if type(value) is int and least <= value <= most else None,
        read=lambda text: int(text) if re.fullmatch(r"-?[0-9]{1,20}", text) else text,
        metavar="N",
    )


def _time(*, zero: bool = False, seconds_up_to: int | None = None) -> Kind:
    """A duration that may be 0, or not; `seconds_up_to` is for a protocol that counts in whole seconds."""

    def kept(value: Any) -> timedelta | None:
        found = _duration(value)
        if found is None or (seconds_up_to and (found.total_seconds() > seconds_up_to or found.microseconds)):
            return None
        return found if found or zero else None

    limits = f", whole seconds up to {seconds_up_to}s" if seconds_up_to else ""
    return Kind(right=f"{_A_DURATION}{limits}, {'or' if zero else 'but not'} 0", kept=kept, metavar="TIME")


def _choice(*words: str, any_case: bool = False) -> Kind:
    def kept(value: Any) -> str | None:
        word = value.lower() if any_case and isinstance(value, str) else value
        return word if word in words else None

    return Kind(right=f"one of {', '.join(map(repr, words))}", kept=kept, metavar="|".join(words))


def _text(right: str, pattern: str, *, metavar: str = "TEXT", most: int = 255) -> Kind:
    """A text that matches the pattern, and can be printed, for it is printed."""
    matches = re.compile(pattern).fullmatch

    def kept(value: Any) -> str | None:
        fine = isinstance(value, str) and value.isprintable() and len(value.encode()) <= most and matches(value)
        return value if fine else None

    return Kind(right=right, kept=kept, metavar=metavar)


def _identifier(most: int) -> Kind:
    """A name that SQL needs no quotes for."""
    right = f"a lower-case name of letters, digits and underscores (at most {most})"
    return _text(right, r"[a-z_][a-z0-9_]*", metavar="NAME", most=most)


def _url(example: str) -> Kind:
    right = (
        f"a URL such as {example}, with special characters in a password percent-encoded: "
        "/ is %2F, @ is %40, : is %3A, # is %23, ? is %3F, a space is %20, ' is %27"
    )
    return Kind(right=right, kept=lambda value: value if is_url(value) else None, metavar="URL", hides="password")


def is_url(value: Any) -> bool:
    """Whether drivers will take the URL apart at the right places: otherwise their errors quote parts of a password.

    Several hosts, as PostgreSQL allows them, are fine. Blanks and quotes in a password are not, because it could not be
    found in a text that quotes it; nor is an @ behind the host (but in the options `user` and `password`), because what
    looks like a port or a database may be the beginning of a password.
    """
    if not isinstance(value, str) or not value.isprintable() or not re.match(r"[a-z][a-z0-9+.-]*://", value):
        return False
    try:
        _, place, path, query, fragment = urlsplit(value)
    except ValueError:
        return False
    user, _, hosts = place.rpartition("@")
    options = query.split("&") if query else []
    return not (
        fragment
        or value.endswith("#")
        or re.search(r"[\s'\"]", user)
        or (place and "@" in path)
        or not all(re.fullmatch(r"(\[[^\]]*\]|[^:\[\]]*)(:\d*)?", host) for host in hosts.split(","))
        or not all(map(_is_option, options))
    )


def _is_option(text: str) -> bool:
    name, _, value = text.partition("=")
    if not re.fullmatch(r"[A-Za-z][\w.-]*=[^\s'\"]*", text):
        return False
    return "@" not in value or name in {"user", "password", "sslpassword"}


_NAME: Final = _text("a text of 1 to 255 bytes, without control characters", r".+", metavar="NAME")
_FILE: Final = _text("the name of a file", r".+", metavar="FILE", most=4096)
_SECRET: Final = Kind(right="a text", kept=lambda value: value if isinstance(value, str) else None, hides="all")
_TEMPLATE: Final = _text(
    "a text with names in braces, for example '{topic}' or '{tenant}.{type}', where tenant is a header",
    r"(?:[^{}]|\{[^{}]+\})+",
    most=1000,
)
_SCHEMA: Final = _identifier(50)
_APP: Final = _text(
    "a module and a name in it, such as 'shop.stock:consumer'", r"[^\W\d][\w.]*:[^\W\d][\w.]*", metavar="MODULE:NAME"
)


def checked_schema(value: Any) -> str:
    """The schema's name is the only thing that is ever put into SQL text, so it is a plain identifier."""
    return str(_SCHEMA.check("schema", value))


# -- settings --------------------------------------------------------------------------------------------------------


def _setting(default: Any, kind: Kind, says: str, *, used: bool = True) -> Any:
    return field(default=default, repr=kind.hides == "nothing", metadata={"kind": kind, "says": says, "used": used})


class _Checked:
    """Every field is checked by its kind; None is right where it is the default."""

    __slots__ = ()

    def __post_init__(self) -> None:
        these: Any = self
        for each in fields(these):
            value = getattr(self, each.name)
            if value is not None or each.default is not None:
                object.__setattr__(self, each.name, each.metadata["kind"].check(each.name, value))


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSettings(_Checked):
    """What the command line needs to know beside a relay's own settings."""

    database: str | None = _setting(
        None,
        _url("postgresql://user@host/name or sqlite:///path/to/file"),
        "The database with the log: postgresql://user@host/name, or sqlite:///path/to/file.",
    )
    database_password_file: str | None = _setting(
        None,
        _FILE,
        "A file with the password of the PostgreSQL user in `database` and `direct`, read when the command starts.",
    )
    direct: str | None = _setting(
        None,
        _url("postgresql://user@host/name"),
        "The same PostgreSQL database without the pooler in between, to be woken by it (LISTEN); only with a pooler.",
    )
    schema: str = _setting(
        DEFAULT_SCHEMA,
        _SCHEMA,
        "Where postroad's tables are: a schema in PostgreSQL, the beginning of their names in SQLite.",
    )
    to: str | None = _setting(
        None,
        _url("amqp://user@host/vhost or null://"),
        "Where the messages go: the broker's URL, amqp://user@host/vhost; null:// takes all and keeps nothing.",
    )
    sink: str = _setting("default", _NAME, "The name of this destination; each has its own cursors.")
    app: str | None = _setting(
        None,
        _APP,
        "A Consumer in your own code, module:name; with relay, its handlers are the destination instead of a broker.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = _setting(
        "info", _choice("debug", "info", "warning", "error", any_case=True), "How much of the log is shown, on stderr."
    )
    log_format: Literal["text", "json"] = _setting(
        "text", _choice("text", "json", any_case=True), "Lines for people, or a JSON object per line for programs."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings(_Checked):
    """How a relay works. Every field has a default that suits most services."""

    lanes: int = _setting(4, _whole(1, 64), "How many lanes a new sink gets; fixed when the sink is created.")
    start: Literal["oldest", "now"] = _setting(
        "oldest",
        _choice("oldest", "now"),
        "Where a new sink begins: at the oldest message that is kept, or at what is added from now on.",
    )
    ordering: Literal["key", "source-key", "none"] = _setting(
        "key",
        _choice("key", "source-key", "none"),
        "Keep each key's messages in order; or each key's of one source; or none, which sends what was read at once.",
    )
    batch_size: int = _setting(1000, _whole(1, 100_000), "The most messages that a lane reads at once.")
    page_bytes: int = _setting(
        4 * 1024 * 1024,
        _whole(1, 1 << 30),
        "What is read at once ends with the message whose payload and headers reach this many bytes.",
    )
    wakeup: Literal["notify", "off"] = _setting(
        "notify",
        _choice("notify", "off"),
        "A lane with nothing to do sleeps until the database wakes it; or off, and it only polls.",
    )
    channel: str = _setting(
        "postroad", _identifier(63), "The channel on which PostgreSQL wakes this relay (LISTEN, NOTIFY)."
    )
    linger: Duration = _setting(
        "150ms", _time(zero=True), "How long a lane stays awake, and polls, after its last message."
    )
    tick: Duration = _setting(
        "5s", _time(), "How often a sleeping relay looks by itself, and tests whether it can be woken."
    )
    poll_interval: Duration = _setting(
        "20ms", _time(), "While a lane is awake or can't be woken: how soon it looks again when it found nothing."
    )
    max_idle_backoff: Duration = _setting(
        "1s", _time(), "While a lane can't be woken: how long that interval grows while nothing comes."
    )
    settle_interval: Duration = _setting(
        "50ms",
        _time(zero=True),
        "Under load a lane's cursor is saved this often; a crash publishes at most that much again.",
    )
    outage_backoff: Duration = _setting(
        "5s", _time(), "The longest pause between two tries to reach a database or a broker that is out."
    )
    grace: Duration = _setting("10s", _time(zero=True), "How long a stopping relay waits for the broker's confirms.")
    report_interval: Duration = _setting(
        "10s", _time(), "While messages move, the log says this often how many, and how fast."
    )
    until_empty_timeout: Duration = _setting(
        "30s",
        _time(zero=True),
        "With --until-empty: how long a database or broker that is out is waited for before it ends with an error.",
    )
    max_attempts: int = _setting(5, _whole(1, 1000), "How often a message that is refused is tried before it is dead.")
    max_backoff: Duration = _setting(
        "5m", _time(), "The longest pause between two attempts of a message that is refused."
    )
    on_dead: Literal["release", "hold"] = _setting(
        "release",
        _choice("release", "hold"),
        "What happens to a key's later messages when one is dead: they go on, or they stay until a person decides.",
    )
    dead_letter_topic: str | None = _setting(
        None, _NAME, "A copy of each message that dies goes to this topic, with headers that say why. Unset: none goes."
    )
    unroutable: Literal["hold", "drop"] = _setting(
        "hold",
        _choice("hold", "drop"),
        "What happens to a message that no consumer has subscribed to: it waits for one, or it is dropped for good.",
    )
    route_timeout: Duration | None = _setting(
        None,
        _time(),
        "A message that has waited this long, and whose route is still out, is dead. Unset: it waits without a limit.",
    )
    retain: Duration = _setting("7d", _time(zero=True), "How long a message that every sink has had stays in the log.")
    cleanup_interval: Duration = _setting(
        "1m", _time(), "How often a relay looks for messages that need not stay in the log any more."
    )
    lease: Duration = _setting(
        "15s",
        _time(),
        "How long a relay that is heard of no more keeps its lanes. It beats three times as often.",
    )
    lock_id: int | None = _setting(
        None,
        _whole(-(1 << 63), (1 << 63) - 1),
        "Only one relay works at a time: the one that holds PostgreSQL's advisory lock with this number.",
    )

    def __post_init__(self) -> None:
        """Check each setting, and those that depend on each other."""
        _Checked.__post_init__(self)
        if self.seconds("max_idle_backoff") < self.seconds("poll_interval"):
            raise InvalidSetting(
                "max_idle_backoff is shorter than poll_interval; it must be at least as long",
                settings=("max_idle_backoff", "poll_interval"),
            )
        if not 1 <= self.seconds("lease") <= 3600:
            lease = duration_text(duration("lease", self.lease))
            raise InvalidSetting(f"lease is {lease!r}; it must be from 1s to 1h", settings=("lease",))

    def seconds(self, name: str) -> float:
        """A duration of this object as seconds."""
        value = getattr(self, name)
        assert isinstance(value, timedelta), name  # noqa: S101 - __post_init__ made it one
        return value.total_seconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class RabbitMQSettings(_Checked):
    """How messages go to RabbitMQ. `brokers.rabbitmq.RabbitMQPublisher` has the same arguments and defaults."""

    exchange: str = _setting("postroad", _NAME, "The exchange that is published to: durable, of type topic.")
    declare: Literal["create", "check", "no"] = _setting(
        "create",
        _choice("create", "check", "no"),
        "What is done about the exchange on a new connection: declare it, make sure that it is there, or neither.",
    )
    envelope: Literal["binary", "structured", "plain"] = _setting(
        "binary",
        _choice("binary", "structured", "plain"),
        "The form of a message: CloudEvents attributes as headers, one JSON document, or no CloudEvents at all.",
    )
    envelope_prefix: str = _setting(
        "ce-",
        _choice("ce-", "ce_", "cloudEvents:", "cloudEvents_"),
        "How the names of headers with CloudEvents attributes begin.",
    )
    routing_key: str = _setting(
        "{topic}", _TEMPLATE, "What the routing key is made of: {topic}, {type}, {key}, {source}, or any header."
    )
    cluster: str | None = _setting(
        None,
        _NAME,
        "A name for the broker that stands for scheme, host and port in the destination that a sink keeps. "
        "Set it where relays reach one cluster by different hosts.",
    )
    username: str | None = _setting(None, _NAME, "Replaces the user's name in the URL.")
    password: str | None = _setting(None, _SECRET, "Replaces the password in the URL.")
    password_file: str | None = _setting(
        None, _FILE, "A file with the password, read anew for each connection, so that it can be changed."
    )
    confirm_timeout: Duration = _setting(
        "30s", _time(), "When the broker has confirmed nothing for so long, it counts as out."
    )
    connect_timeout: Duration = _setting("10s", _time(), "How long a new connection may take.")
    heartbeat: Duration | None = _setting(
        None,
        _time(zero=True, seconds_up_to=65_534),
        "How often a silent connection is tested, 0 for never. Unset: what the URL says, else 10s.",
    )
    max_message_size: int = _setting(
        134_217_728, _whole(1, 1 << 40), "A message with a larger body is refused without asking the broker."
    )

    def __post_init__(self) -> None:
        """Check each setting, and those that depend on each other."""
        _Checked.__post_init__(self)
        if self.password is not None and self.password_file is not None:
            raise InvalidSetting(
                "password and password_file are both given; give one of them", settings=("password", "password_file")
            )


# -- all of them -----------------------------------------------------------------------------------------------------

TABLES: Final[dict[str, tuple[type[Any], ...]]] = {
    "": (CommandSettings, RelaySettings),
    "rabbitmq": (RabbitMQSettings,),
}
"""Which settings stand in which table of the file; those without a name stand above all tables."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is known of a setting before anybody has given it a value."""

    table: str
    key: str
    default: Any
    kind: Kind
    says: str
    used: bool
    """False while it is checked, but no code acts on it yet."""

    @property
    def name(self) -> str:
        """What everybody calls it."""
        return f"{self.table}.{self.key}" if self.table else self.key

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return f"POSTROAD_{self.name.upper().replace('.', '_')}"

    @property
    def option(self) -> str | None:
        """Its name on the command line. What belongs to one broker has none, for there would be too many."""
        return None if self.table else f"--{self.key.replace('_', '-')}"

    @property
    def ways(self) -> str:
        """How it can be set outside of a file."""
        return f"{self.option} or {self.variable}" if self.option else self.variable


@cache
def all_settings() -> dict[str, Setting]:
    """Every setting, by its name."""
    found = [
        Setting(table, each.name, each.default, each.metadata["kind"], each.metadata["says"], each.metadata["used"])
        for table, classes in TABLES.items()
        for settings in classes
        for each in fields(settings)
    ]
    return {setting.name: setting for setting in found}
