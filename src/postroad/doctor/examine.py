"""Gathers the facts and has every check judge them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from postroad.brokers.registry import all_brokers, broker_for
from postroad.config import DEFAULT_SCHEMA, RelaySettings
from postroad.doctor import (
    broker,
    inbox,
    log_and_relays,
    postgresql,
    postgresql_roles,
    postgresql_vacuum,
    replication,
)
from postroad.doctor.replication import Carrier
from postroad.errors import InvalidSetting, MissingExtra, PostroadError, StoreUnavailable
from postroad.findings import Facts, Limits, NotKnown
from postroad.safe_text import without_passwords
from postroad.stores import facts_of
from postroad.stores.replication import slot_of_destination

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.brokers.registry import Broker
    from postroad.findings import Check, Finding
    from postroad.setting import SettingsGroup
    from postroad.stores.facts import FactReader

__all__ = ["SAMPLE_SECONDS", "ConsumerFacts", "SecretFile", "all_checks", "examine", "examine_carrier"]

SAMPLE_SECONDS: Final = 1.0
"""How long lanes are watched for changes of their owners."""
BROKER_SECONDS: Final = 30.0

_POSTGRESQL: Final = (postgresql.CHECKS, postgresql_vacuum.CHECKS, postgresql_roles.CHECKS)
_FAMILIES: Final = (log_and_relays.CHECKS, *_POSTGRESQL, replication.CHECKS, broker.CHECKS, inbox.CHECKS)
_OF_BROKERS: Final = ("broker_connection", "broker_certificate")


class ConsumerFacts(NamedTuple):
    """What is known of a consumer from its code."""

    name: str
    retain: float | None
    """How many seconds its inbox remembers; None: for ever."""
    needed: float
    """For how many seconds a message may be delivered again."""
    queue_arguments: dict[str, Any]
    """How its queue is declared, where its broker has such arguments."""
    dead_letter_queue: str | None = None
    """Where its dead letters go, if that is a queue."""


class SecretFile(NamedTuple):
    """A file that contains a secret."""

    path: str
    what: str
    """What is in it, such as the name of a setting."""
    readable_by_all: bool


def all_checks(*, brokers: Sequence[Broker] | None = None) -> list[Check]:
    """Every check: those of the families, and those of all brokers that are installed, or of the given ones."""
    of_brokers = [check for each in (all_brokers() if brokers is None else brokers) for check in each.checks]
    return [check for family in _FAMILIES for check in family.all] + of_brokers


async def examine(
    database: str,
    *,
    schema: str = DEFAULT_SCHEMA,
    direct: str | None = None,
    relay: RelaySettings | None = None,
    to: str | None = None,
    broker_settings: SettingsGroup | None = None,
    consumers: Sequence[ConsumerFacts] | None = None,
    files: Sequence[SecretFile] = (),
    limits: Limits = Limits(),  # noqa: B008 - it is frozen
    watch_seconds: float = SAMPLE_SECONDS,
) -> Sequence[Finding]:
    """Make every check and return what each found. Nothing is changed, in the database or the broker.

    `to` is the URL of a broker; without it, or without `consumers`, the checks of them are skipped. Lanes are watched
    for `watch_seconds`. Raises InvalidSetting for a URL that can't be used; a database or a broker that can't be
    reached is a finding.
    """
    facts = Facts({"schema_name": schema, "relay_settings": relay or RelaySettings(), "secret_files": files})
    if consumers is None:
        facts.miss("consumers_given", "no consumer is known; name one with --app MODULE:NAME")
    else:
        facts.know("consumers_given", consumers)
    reader = facts_of(database, schema=schema, direct=direct)
    await _gather(reader, facts, watch_seconds)
    chosen = None if to is None else broker_for(to, "to")
    if chosen is None or to is None:
        reason = "no broker is given; name it with --to URL"
        facts = facts | Facts({}, dict.fromkeys((*_OF_BROKERS, "broker"), reason))
    else:
        facts = facts | await _ask(chosen, to, broker_settings, facts)
    _expect_carrier(facts, to)
    checks = all_checks(brokers=() if chosen is None else (chosen,))
    of_servers = [check for family in _POSTGRESQL for check in family.all]
    left_out = {check.name for check in of_servers if not set(check.needs) <= set(reader.names)}
    if "carrier" not in facts:
        left_out |= {check.name for check in replication.CHECKS.all}
    return [finding for check in checks if check.name not in left_out for finding in check.findings(facts, limits)]


async def examine_carrier(database: str, carrier: Carrier, *, schema: str = DEFAULT_SCHEMA) -> Sequence[Finding]:
    """Make the checks of what a program needs that carries the log by logical replication."""
    facts = Facts({"schema_name": schema, "carrier": carrier})
    names = {need for check in replication.CHECKS.all for need in check.needs if need != "carrier"}
    reader = facts_of(database, schema=schema, direct=None)
    if not names <= set(reader.names):
        raise InvalidSetting("database is of another kind; only PostgreSQL can be read by logical replication")
    async with reader:
        for name in sorted(names):
            await _read(reader, name, facts)
    return [finding for check in replication.CHECKS.all for finding in check.findings(facts, Limits())]


def _expect_carrier(facts: Facts, to: str | None) -> None:
    """If a sink follows a replication slot, or is about to, note what its reader needs."""
    destinations = [to]
    if "sinks" in facts:
        destinations += [row["destination"] for row in facts["sinks"]]
    slots = [slot for each in destinations if (slot := slot_of_destination(each)) is not None]
    if slots:
        facts.know("carrier", Carrier(slots[0]))


async def _gather(reader: FactReader, facts: Facts, watch_seconds: float) -> None:
    """Read all facts of a database; none of them is known if it can't be reached."""
    facts.know("database", {"error": None})
    try:
        async with reader:
            begun = asyncio.get_running_loop().time()
            for name in reader.names:
                await _read(reader, name, facts)
            if "epochs" in facts:
                await asyncio.sleep(max(0.0, begun + watch_seconds - asyncio.get_running_loop().time()))
                before = _by_lane(facts["epochs"])
                await _read(reader, "epochs", facts)
                facts.know("epoch_samples", (before, _by_lane(facts["epochs"])))
            else:
                facts.miss("epoch_samples", facts.why_not("epochs") or "the lanes can't be read")
    except StoreUnavailable as error:
        for name in (*reader.names, "epoch_samples"):
            facts.miss(name, "the database can't be reached")
        facts.know("database", {"error": without_passwords(str(error))})


async def _read(reader: FactReader, name: str, facts: Facts) -> None:
    try:
        facts.know(name, await reader.read(name))
    except NotKnown as reason:
        facts.miss(name, without_passwords(str(reason)))


def _by_lane(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, int], int]:
    return {(row["sink"], row["lane"]): row["epoch"] for row in rows}


async def _ask(broker: Broker, to: str, settings: SettingsGroup | None, facts: Facts) -> Facts:
    """The broker's facts."""
    if broker.facts is None:
        return Facts({}, dict.fromkeys(_OF_BROKERS, f"{broker.title} has no checks of its own"))
    try:
        async with asyncio.timeout(BROKER_SECONDS):
            return await broker.facts(to, settings or broker.publisher_settings(), facts)
    except MissingExtra as error:
        reason = str(error)
    except ModuleNotFoundError as error:
        reason = f"the driver is not installed ({error.name}): pip install 'postroad[{broker.extra}]'"
    except TimeoutError:
        reason = f"{broker.title} did not answer within {BROKER_SECONDS:.0f} s"
        return Facts({"broker_connection": {"place": broker.title, "error": reason}}, {"broker_certificate": reason})
    except PostroadError:
        raise
    except Exception as error:  # whatever the broker's own module raises: the other checks are not made worse by it
        reason = without_passwords(f"{broker.title} could not be asked: {type(error).__name__}: {error}")
    return Facts({}, dict.fromkeys(_OF_BROKERS, reason))
