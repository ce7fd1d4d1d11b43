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
_HOST: Final = text("a host name or an IP address, such as '127.0.0.1'", r"[A-Za-z0-9._:%-]+", metavar="HOST")


def checked_schema(value: Any) -> str:
    """The schema's name is the only value that is ever put into SQL text, so it must be a plain identifier."""
    return str(_SCHEMA.check("schema", value))


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSettings(SettingsGroup):
    """The settings of the command line, beside those of a relay."""

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
        "The same PostgreSQL database without the pooler in between, for the LISTEN connection; only with a pooler.",
    )
    schema: str = setting(
        DEFAULT_SCHEMA,
        _SCHEMA,
        "The schema of postroad's tables in PostgreSQL; in SQLite the prefix of their names.",
    )
    to: str | None = setting(
        None,
        url("amqp://user@host/vhost or null://"),
        "The destination: a broker's URL, such as amqp://user@host/vhost; null:// confirms all and keeps nothing.",
    )
    sink: str = setting("default", NAME, "The name of this destination; each has its own cursors.")
    app: str | None = setting(
        None,
        _APP,
        "A Consumer in your own code, module:name; with relay, its handlers are the destination instead of a broker.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info",
        choice("debug", "info", "warning", "error", any_case=True),
        "The lowest level of the log that is shown, on stderr.",
    )
    log_format: Literal["text", "json"] = setting(
        "text",
        choice("text", "json", any_case=True),
        "The format of the log: lines for people, or a JSON object per line for programs.",
    )
    tracing: Literal["auto", "deliver", "off"] = setting(
        "auto",
        choice("auto", "deliver", "off"),
        "auto makes spans if the process has an OpenTelemetry SDK; deliver makes one for each sampled message, too.",
    )
    metrics_port: int | None = setting(
        None, whole_number(1, 65_535), "Serve /metrics, /livez and /readyz on this port."
    )
    metrics_host: str = setting(
        "127.0.0.1", _HOST, "The address to serve them on; 0.0.0.0 for all addresses. There is no access control."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings(SettingsGroup):
    """How a relay works. Every field has a default that suits most services."""

    lanes: int = setting(4, whole_number(1, 64), "How many lanes a new sink gets; fixed when the sink is created.")
    start: Literal["oldest", "now"] = setting(
        "oldest",
        choice("oldest", "now"),
        "Where a new sink begins: at the oldest message in the log, or with messages added from now on.",
    )
    ordering: Literal["key", "source-key", "none"] = setting(
        "key",
        choice("key", "source-key", "none"),
        "What is kept in order: messages of one key; of one key and source; or none, so that a page is sent at once.",
    )
    batch_size: int = setting(
        1000, whole_number(1, 100_000), "The most messages in a page, which is what a lane reads at once."
    )
    page_bytes: int = setting(
        4 * 1024 * 1024,
        whole_number(1, 1 << 30),
        "A page ends with the message whose payload and headers reach this many bytes in all.",
    )
    wakeup: Literal["notify", "off"] = setting(
        "notify",
        choice("notify", "off"),
        "An idle lane sleeps until a NOTIFY wakes it; with off it polls.",
    )
    channel: str = setting("postroad", identifier(63), "The PostgreSQL channel of LISTEN and NOTIFY for this relay.")
    linger: Duration = setting(
        "150ms", time_span(zero=True), "How long a lane goes on polling after its last message before it sleeps."
    )
    tick: Duration = setting(
        "5s", time_span(), "How often a sleeping relay polls anyway, and tests its LISTEN connection."
    )
    poll_interval: Duration = setting(
        "20ms", time_span(), "The polling interval of a lane that is awake, or whose LISTEN connection is lost."
    )
    max_idle_backoff: Duration = setting(
        "1s",
        time_span(),
        "The longest polling interval while LISTEN is unavailable: it grows up to this while no message comes.",
    )
    settle_interval: Duration = setting(
        "50ms",
        time_span(zero=True),
        "How often a lane saves its cursor under load. After a crash that much is published again, and the page that "
        "was being published.",
    )
    outage_backoff: Duration = setting(
        "5s", time_span(), "The longest pause between two attempts to reach an unavailable database or broker."
    )
    grace: Duration = setting("10s", time_span(zero=True), "How long a stopping relay waits for the broker's confirms.")
    report_interval: Duration = setting(
        "10s", time_span(), "How often the relay logs its throughput while it publishes."
    )
    until_empty_timeout: Duration = setting(
        "30s",
        time_span(zero=True),
        "With --until-empty: how long the relay waits for an unavailable database or broker before it fails.",
    )
    max_attempts: int = setting(5, whole_number(1, 1000), "How many attempts a refused message gets before it is dead.")
    max_backoff: Duration = setting("5m", time_span(), "The longest pause between two attempts of a refused message.")
    on_dead: Literal["release", "hold"] = setting(
        "release",
        choice("release", "hold"),
        "What happens to the later messages of a key when one is dead: they go on, or are held until an operator acts.",
    )
    dead_letter_topic: str | None = setting(
        None,
        NAME,
        "A copy of each dead message is published to this topic, with the reason in its headers. Unset: no copy.",
    )
    dead_letter_sink: str | None = setting(
        None,
        NAME,
        "Another sink, which publishes a copy of each dead message, with the reason in its headers. Unset: no copy.",
    )
    unroutable: Literal["hold", "drop"] = setting(
        "hold",
        choice("hold", "drop"),
        "What happens to a message that the broker can't route to any queue: it is held until it can, or dropped.",
    )
    route_timeout: Duration | None = setting(
        None,
        time_span(),
        "A message whose route is still blocked after this time is dead. Unset: it waits without a limit.",
    )
    retain: Duration = setting(
        "7d", time_span(zero=True), "How long a message stays in the log after every sink has delivered it."
    )
    cleanup_interval: Duration = setting(
        "1m", time_span(), "How often a relay deletes messages whose retention has ended."
    )
    lease: Duration = setting(
        "15s",
        time_span(),
        "How long a relay keeps its lanes without a heartbeat. It sends three in that time.",
    )
    lock_id: int | None = setting(
        None,
        whole_number(-(1 << 63), (1 << 63) - 1),
        "Only one relay works at a time: the one that holds PostgreSQL's advisory lock of this number.",
    )

    def __post_init__(self) -> None:
        """Check each setting, and those that depend on each other."""
        SettingsGroup.__post_init__(self)
        if self.seconds("max_idle_backoff") < self.seconds("poll_interval"):
            raise InvalidSetting(
                "max_idle_backoff is shorter than poll_interval; it must be at least as long",
                settings=("max_idle_backoff", "poll_interval"),
            )
        if self.dead_letter_topic is not None and self.dead_letter_sink is not None:
            raise InvalidSetting(
                f"dead_letter_topic is {self.dead_letter_topic!r} and dead_letter_sink is {self.dead_letter_sink!r}; "
                "give one of them: copies go to a topic at the sink's own destination, or to another sink",
                settings=("dead_letter_topic", "dead_letter_sink"),
            )
        if not 1 <= self.seconds("lease") <= 3600:
            lease = duration_text(duration("lease", self.lease))
            raise InvalidSetting(f"lease is {lease!r}; it must be from 1s to 1h", settings=("lease",))
