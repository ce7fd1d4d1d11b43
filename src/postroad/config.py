"""The settings of the command line and of a relay, as values that check themselves when they are built.

A broker declares its own settings in its own module, see `brokers.registry`. Nothing here reads the environment.
"""
# ruff: noqa: RUF009 - `setting` is dataclasses.field, with a declaration

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from postroad.errors import InvalidSetting
from postroad.kinds import (
    NAME,
    PASSWORD_FILE,
    choice,
    duration,
    duration_text,
    identifier,
    text,
    time_span,
    url,
    whole_number,
)
from postroad.setting import SettingsGroup, setting

if TYPE_CHECKING:
    from postroad.kinds import Duration

__all__ = ["DEFAULT_SCHEMA", "CommandSettings", "RelaySettings", "checked_schema"]

DEFAULT_SCHEMA: Final = "postroad"

_SCHEMA: Final = identifier(50)
_APP: Final = text(
    "a module and a name in it, such as 'shop.stock:consumer'", r"[^\W\d][\w.]*:[^\W\d][\w.]*", metavar="MODULE:NAME"
)


def checked_schema(value: Any) -> str:
    """The schema's name is the only value that is ever put into SQL text, so it must be a plain identifier."""
    return str(_SCHEMA.check("schema", value))


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSettings(SettingsGroup):
    """What the command line needs to know beside a relay's own settings."""

    database: str | None = setting(
        None,
        url("postgresql://user@host/name or sqlite:///path/to/file"),
        "The database with the log: postgresql://user@host/name, or sqlite:///path/to/file.",
    )
    database_password_file: str | None = setting(
        None,
        PASSWORD_FILE,
        "A file with the password of the PostgreSQL user in `database` and `direct`, read when the command starts.",
    )
    direct: str | None = setting(
        None,
        url("postgresql://user@host/name"),
        "The same PostgreSQL database without the pooler in between, to be woken by it (LISTEN); only with a pooler.",
    )
    schema: str = setting(
        DEFAULT_SCHEMA,
        _SCHEMA,
        "Where postroad's tables are: a schema in PostgreSQL, the beginning of their names in SQLite.",
    )
    to: str | None = setting(
        None,
        url("amqp://user@host/vhost or null://"),
        "Where the messages go: the broker's URL, amqp://user@host/vhost; null:// takes all and keeps nothing.",
    )
    sink: str = setting("default", NAME, "The name of this destination; each has its own cursors.")
    app: str | None = setting(
        None,
        _APP,
        "A Consumer in your own code, module:name; with relay, its handlers are the destination instead of a broker.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", choice("debug", "info", "warning", "error", any_case=True), "How much of the log is shown, on stderr."
    )
    log_format: Literal["text", "json"] = setting(
        "text", choice("text", "json", any_case=True), "Lines for people, or a JSON object per line for programs."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings(SettingsGroup):
    """How a relay works. Every field has a default that suits most services."""

    lanes: int = setting(4, whole_number(1, 64), "How many lanes a new sink gets; fixed when the sink is created.")
    start: Literal["oldest", "now"] = setting(
        "oldest",
        choice("oldest", "now"),
        "Where a new sink begins: at the oldest message that is kept, or at what is added from now on.",
    )
    ordering: Literal["key", "source-key", "none"] = setting(
        "key",
        choice("key", "source-key", "none"),
        "Keep each key's messages in order; or each key's of one source; or none, which sends what was read at once.",
    )
    batch_size: int = setting(1000, whole_number(1, 100_000), "The most messages that a lane reads at once.")
    page_bytes: int = setting(
        4 * 1024 * 1024,
        whole_number(1, 1 << 30),
        "What is read at once ends with the message whose payload and headers reach this many bytes.",
    )
    wakeup: Literal["notify", "off"] = setting(
        "notify",
        choice("notify", "off"),
        "A lane with nothing to do sleeps until the database wakes it; or off, and it only polls.",
    )
    channel: str = setting(
        "postroad", identifier(63), "The channel on which PostgreSQL wakes this relay (LISTEN, NOTIFY)."
    )
    linger: Duration = setting(
        "150ms", time_span(zero=True), "How long a lane stays awake, and polls, after its last message."
    )
    tick: Duration = setting(
        "5s", time_span(), "How often a sleeping relay looks by itself, and tests whether it can be woken."
    )
    poll_interval: Duration = setting(
        "20ms", time_span(), "While a lane is awake or can't be woken: how soon it looks again when it found nothing."
    )
    max_idle_backoff: Duration = setting(
        "1s", time_span(), "While a lane can't be woken: how long that interval grows while nothing comes."
    )
    settle_interval: Duration = setting(
        "50ms",
        time_span(zero=True),
        "Under load a lane's cursor is saved this often; a crash publishes at most that much again.",
    )
    outage_backoff: Duration = setting(
        "5s", time_span(), "The longest pause between two tries to reach a database or a broker that is out."
    )
    grace: Duration = setting("10s", time_span(zero=True), "How long a stopping relay waits for the broker's confirms.")
    report_interval: Duration = setting(
        "10s", time_span(), "While messages move, the log says this often how many, and how fast."
    )
    until_empty_timeout: Duration = setting(
        "30s",
        time_span(zero=True),
        "With --until-empty: how long a database or broker that is out is waited for before it ends with an error.",
    )
    max_attempts: int = setting(
        5, whole_number(1, 1000), "How often a message that is refused is tried before it is dead."
    )
    max_backoff: Duration = setting(
        "5m", time_span(), "The longest pause between two attempts of a message that is refused."
    )
    on_dead: Literal["release", "hold"] = setting(
        "release",
        choice("release", "hold"),
        "What happens to a key's later messages when one is dead: they go on, or they stay until a person decides.",
    )
    dead_letter_topic: str | None = setting(
        None, NAME, "A copy of each message that dies goes to this topic, with headers that say why. Unset: none goes."
    )
    unroutable: Literal["hold", "drop"] = setting(
        "hold",
        choice("hold", "drop"),
        "What happens to a message that no consumer has subscribed to: it waits for one, or it is dropped for good.",
    )
    route_timeout: Duration | None = setting(
        None,
        time_span(),
        "A message that has waited this long, and whose route is still out, is dead. Unset: it waits without a limit.",
    )
    retain: Duration = setting(
        "7d", time_span(zero=True), "How long a message that every sink has had stays in the log."
    )
    cleanup_interval: Duration = setting(
        "1m", time_span(), "How often a relay looks for messages that need not stay in the log any more."
    )
    lease: Duration = setting(
        "15s",
        time_span(),
        "How long a relay that is heard of no more keeps its lanes. It beats three times as often.",
    )
    lock_id: int | None = setting(
        None,
        whole_number(-(1 << 63), (1 << 63) - 1),
        "Only one relay works at a time: the one that holds PostgreSQL's advisory lock with this number.",
    )

    def __post_init__(self) -> None:
        """Check each setting, and those that depend on each other."""
        SettingsGroup.__post_init__(self)
        if self.seconds("max_idle_backoff") < self.seconds("poll_interval"):
            raise InvalidSetting(
                "max_idle_backoff is shorter than poll_interval; it must be at least as long",
                settings=("max_idle_backoff", "poll_interval"),
            )
        if not 1 <= self.seconds("lease") <= 3600:
            lease = duration_text(duration("lease", self.lease))
            raise InvalidSetting(f"lease is {lease!r}; it must be from 1s to 1h", settings=("lease",))
