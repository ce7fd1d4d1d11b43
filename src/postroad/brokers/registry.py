"""The brokers that postroad can publish to and consume from, by the scheme of their URL.

A broker declares its settings and how it is built in its own module, as a `Broker`. Those that come with postroad are
listed here; a package of its own registers one through the entry-point group `postroad.brokers`, with the scheme as the
name and the `Broker` as the value. A module is imported when its scheme is first used, and a driver when a publisher or
subscriber is built.
"""

from __future__ import annotations

import re
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from postroad.config import CommandSettings, RelaySettings
from postroad.errors import InvalidSetting, MissingExtra
from postroad.kinds import is_url
from postroad.setting import SettingsGroup, check_names, nearest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
    from datetime import timedelta
    from importlib.metadata import EntryPoint

    from postroad.brokers.base import Publisher, Subscriber
    from postroad.events import Event
    from postroad.findings import Check, Facts

__all__ = [
    "GROUP",
    "Broker",
    "NoSettings",
    "Subscription",
    "all_brokers",
    "broken_brokers",
    "broker_for",
    "check_subscriber_settings",
    "known_schemes",
    "publisher_for",
    "subscriber_for",
    "subscriber_settings",
    "url_examples",
]

GROUP: Final = "postroad.brokers"
"""The entry-point group in which packages register their brokers."""

_BUILT_IN: Final = {
    "amqp": "postroad.brokers.rabbitmq:BROKER",
    "amqps": "postroad.brokers.rabbitmq:BROKER",
    "kafka": "postroad.brokers.kafka:BROKER",
    "kafkas": "postroad.brokers.kafka:BROKER",
    "nats": "postroad.brokers.nats:BROKER",
    "tls": "postroad.brokers.nats:BROKER",
    "http": "postroad.brokers.http:BROKER",
    "https": "postroad.brokers.http:BROKER",
    "redis": "postroad.brokers.redis:BROKER",
    "rediss": "postroad.brokers.redis:BROKER",
    "redis+sentinel": "postroad.brokers.redis:BROKER",
    "rediss+sentinel": "postroad.brokers.redis:BROKER",
    "null": "postroad.brokers.null:BROKER",
    "memory": "postroad.brokers.memory:BROKER",
    "local": "postroad.brokers.local:BROKER",
    "slot": "postroad.brokers.slot:BROKER",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NoSettings(SettingsGroup):
    """For a broker that has nothing to set."""


class Subscription(NamedTuple):
    """What a consumer asks of the source it receives from. A broker derives defaults of its settings from it."""

    consumer: str
    """The consumer's name."""
    types: tuple[str, ...] = ()
    """The types of messages that it has handlers for."""
    in_order: bool = True
    """Messages of one key must not be with two processes at once."""
    batch_size: int = 1
    """The most messages that one transaction takes."""
    message_ttl: timedelta | None = None
    """How long the source keeps a message, where it can be told to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A broker as the registry knows it. `publisher` and `subscriber` import the driver, nothing else here does."""

    name: str
    """Its table in the file with settings, and how its variables and options begin: [rabbitmq], --rabbitmq-exchange."""
    title: str
    """What people call it."""
    url: str = ""
    """What its URLs look like, for errors and help. Empty for one that is not used by URL."""
    publisher: Callable[[str, Any], Publisher] | None = None
    """Builds a publisher from a URL and the publisher's settings; does not connect."""
    publisher_settings: type[SettingsGroup] = NoSettings
    subscriber: Callable[[str, Any, Subscription], Subscriber] | None = None
    """Builds a subscriber from a URL, the subscriber's settings and what the consumer asks; does not connect."""
    subscriber_settings: type[SettingsGroup] = NoSettings
    url_warnings: Callable[[str, str], Iterable[Event]] = lambda setting, url: ()
    """What is unwise about a URL, given the name of the setting that holds it."""
    in_process: bool = False
    """Its queues are in the memory of this process: one that only runs a relay would lose all that it publishes."""
    facts: Callable[[str, Any, Facts], Awaitable[Facts]] | None = None
    """What `postroad doctor` asks the broker, given a URL, the publisher's settings and what is known already. It
    changes nothing. It notes `broker_connection` and `broker_certificate`, and what its `checks` need.
    """
    checks: tuple[Check, ...] = ()
    """The checks of `postroad doctor` that this broker has beside those of all brokers."""
    extra: str | None = None
    """The extra of postroad that installs its driver; None where the broker's own package depends on it."""
    drivers: frozenset[str] = frozenset()
    """The modules that this extra installs."""


# -- finding a broker ------------------------------------------------------------------------------------------------


def broker_for(url: Any, setting: str = "url") -> Broker:
    """The broker for a URL; errors call the URL by the name of its setting and never quote it, for its password.

    Raises InvalidSetting for an unknown scheme, with the known ones, and for a broker that can't be loaded.
    """
    settings = ("to",) if setting == "to" else ()
    if not is_url(url):
        examples = url_examples(consume=setting == "source")
        raise InvalidSetting(
            f"{setting} is not a valid URL; it must look like {examples}, with special characters of "
            "user and password percent-encoded",
            settings=settings,
        )
    scheme = url.partition("://")[0]
    found = _built_in(scheme) if scheme in _BUILT_IN else _installed().get(scheme)
    if isinstance(found, Broker):
        return found
    if found is not None:
        reason = f"{setting} begins with {scheme}://, and its broker can't be loaded: {found}"
    else:
        guess = nearest(scheme, known_schemes())
        hint = f"did you mean {guess}://? " if guess else ""
        examples = url_examples(consume=setting == "source")
        reason = f"{setting} is a URL that begins with {scheme!r}; {hint}it must look like {examples}"
    raise InvalidSetting(reason, settings=settings)


def known_schemes() -> list[str]:
    """Every scheme that is registered, also of a broker that can't be loaded."""
    return [*_BUILT_IN, *_installed()]


def all_brokers() -> list[Broker]:
    """Every broker that can be loaded, once each."""
    found = [*map(_built_in, _BUILT_IN), *_installed().values()]
    return list({each.name: each for each in found if isinstance(each, Broker)}.values())


def broken_brokers() -> dict[str, str]:
    """The schemes whose brokers can't be loaded, and why."""
    return {scheme: reason for scheme, reason in _installed().items() if isinstance(reason, str)}


def url_examples(*more: str, consume: bool = False) -> str:
    """What the URLs of all brokers look like, or of those that can be consumed from, for errors."""
    examples = [*(each.url for each in all_brokers() if each.url and (each.subscriber or not consume)), *more]
    return f"{', '.join(examples[:-1])} or {examples[-1]}"


def _built_in(scheme: str) -> Broker:
    module, _, name = _BUILT_IN[scheme].partition(":")
    found: Broker = getattr(import_module(module), name)
    return found


@cache
def _installed() -> dict[str, Broker | str]:
    """The brokers of other packages by scheme, or why one can't be loaded: it must not make the others unusable."""
    from importlib.metadata import entry_points  # takes as long to import as all brokers together

    entries: dict[str, list[EntryPoint]] = defaultdict(list)
    for each in entry_points(group=GROUP):
        if each.name not in _BUILT_IN:
            entries[each.name].append(each)
    found = {scheme: _load(those) for scheme, those in entries.items()}
    brokers = [*map(_built_in, _BUILT_IN), *(each for each in found.values() if isinstance(each, Broker))]
    for scheme, broker in found.items():
        if isinstance(broker, Broker) and any(each.name == broker.name and each is not broker for each in brokers):
            found[scheme] = f"its name is {broker.name!r}, which another broker has ({_whose(entries[scheme])})"
    return found


def _load(entries: list[EntryPoint]) -> Broker | str:
    if len({each.value for each in entries}) > 1:
        return f"several packages register it ({_whose(entries)}); uninstall all but one"
    try:
        found = entries[0].load()
    except Exception as error:  # whatever the package raises when it is imported
        return f"{type(error).__name__}: {error} ({_whose(entries)})"
    if not isinstance(found, Broker):
        return f"it is of type {type(found).__name__}; it must be a postroad.brokers.Broker ({_whose(entries)})"
    general = [each.key for each in (*CommandSettings.declared(), *RelaySettings.declared())]
    if not re.fullmatch("[a-z][a-z0-9]*", found.name) or any(f"{key}_".startswith(f"{found.name}_") for key in general):
        return (
            f"its name is {found.name!r}; it must be lower-case letters and digits, and no general setting's name may "
            f"begin with it ({_whose(entries)})"
        )
    return found


def _whose(entries: list[EntryPoint]) -> str:
    return ", ".join(f"{each.dist.name if each.dist else '?'}: {each.value}" for each in entries)


# -- building --------------------------------------------------------------------------------------------------------


def publisher_for(url: str, settings: SettingsGroup | None = None, /, **given: Any) -> Publisher:
    """The publisher for a URL, with the settings of its broker as one object or as keywords. It does not connect yet.

    Raises InvalidSetting, or MissingExtra when the driver is not installed.
    """
    broker = broker_for(url, "to")
    if broker.publisher is None:
        raise InvalidSetting(f"to is a URL of {broker.title}, which postroad can't publish to", settings=("to",))
    if settings is None:
        settings = broker.publisher_settings.of(f"the publisher of {broker.title}", given)
    try:
        with _driver_of(broker, url):
            return broker.publisher(url, settings)
    except InvalidSetting as error:
        settings_at_fault = [f"{broker.name}.{name}" for name in error.settings]
        raise InvalidSetting(str(error), settings=settings_at_fault or ("to",)) from error


def check_subscriber_settings(whose: str, given: Iterable[str], *, similar: Iterable[str] = ()) -> None:
    """Refuse settings that no broker's subscriber has, where the broker is not known."""
    known = dict.fromkeys(each.key for broker in all_brokers() for each in broker.subscriber_settings.declared())
    check_names(whose, given, known, similar=similar)


def subscriber_settings(url: str, given: Mapping[str, Any], *, similar: Iterable[str] = ()) -> SettingsGroup:
    """The settings of the subscriber for a URL, from keywords; one that is None is left at its default. No driver is
    imported.

    Raises InvalidSetting; for an unknown keyword it suggests one of the settings or of the `similar` names.
    """
    broker = broker_for(url, "source")
    if broker.subscriber is None:
        raise InvalidSetting(f"source is a URL of {broker.title}, which postroad can't consume from")
    group, whose = broker.subscriber_settings, f"the subscriber of {broker.title}"
    check_names(whose, given, [each.key for each in group.declared()], similar=similar)
    return group.of(whose, {name: value for name, value in given.items() if value is not None})


def subscriber_for(
    url: str, subscription: Subscription, settings: SettingsGroup | None = None, /, **given: Any
) -> Subscriber:
    """The subscriber for a URL, with the settings of its broker as one object or as keywords. It does not connect yet.

    Raises InvalidSetting, or MissingExtra when the driver is not installed.
    """
    if settings is None:
        settings = subscriber_settings(url, given)
    broker = broker_for(url, "source")
    assert broker.subscriber is not None  # noqa: S101 - subscriber_settings has refused a broker without one
    with _driver_of(broker, url):
        return broker.subscriber(url, settings, subscription)


@contextmanager
def _driver_of(broker: Broker, url: str) -> Iterator[None]:
    """Say which extra to install when a module of the driver is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if broker.extra is None or (error.name or "").partition(".")[0] not in broker.drivers:
            raise
        raise MissingExtra(f"{url.partition('://')[0]}://", broker.extra) from error
