"""What a check of `postroad doctor` says: a level, the evidence, the exact fix, and where it is explained. Pure.

A check judges facts that were gathered before, from a database, a broker or the settings. So a judgement is a plain
function, and a check whose facts could not be gathered is skipped, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final

import msgspec

__all__ = [
    "PAGE",
    "SCHEMA_MISSING",
    "Check",
    "Checks",
    "Facts",
    "Finding",
    "Judge",
    "Level",
    "Limits",
    "NotKnown",
    "Verdict",
    "error",
    "ok",
    "skipped",
    "warning",
]

PAGE: Final = "docs/doctor.md"
"""Where each check has a section with its name."""
SCHEMA_MISSING: Final = "the schema is missing or too old; see the check `schema`"
"""Why a fact that comes from our tables is not known: one reason for all of them."""


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    SKIPPED = "skipped"
    """The check could not be made."""
    WARNING = "warning"
    ERROR = "error"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What one check found. A check that found several things wrong has several findings."""

    check: str
    family: str
    level: Level
    text: str
    evidence: Mapping[str, Any] = {}
    """The values that were judged."""
    fix: str | None = None
    """A command or SQL, where something is to be done."""
    link: str


@dataclass(frozen=True, slots=True)
class Limits:
    """From where on something is reported."""

    transaction: timedelta = timedelta(hours=1)
    prepared_transaction: timedelta = timedelta(minutes=10)
    transaction_ids: int = 1_000_000_000
    """The age of the oldest transaction id, of the 2,000,000,000 at which PostgreSQL stops to accept writes."""
    transaction_ids_error: int = 1_600_000_000
    dead_rows: int = 10_000
    dead_share: float = 0.4
    """Dead rows are reported above both limits."""
    hot_updates: int = 1_000
    hot_share: float = 0.8
    notification_queue: float = 0.1
    notification_queue_error: float = 0.5
    """Above it, transactions that add messages do not notify relays any more."""
    statement_timeout: timedelta = timedelta(seconds=60)
    idle_session_timeout: timedelta = timedelta(minutes=5)
    free_connections: int = 10
    clock: timedelta = timedelta(seconds=2)
    clock_error: timedelta = timedelta(seconds=30)
    unserved: timedelta = timedelta(days=1)
    retain_factor: float = 1.5
    """The oldest message may be this many times as old as the setting `retain`."""
    died_relays: int = 3
    """So many relays that died within an hour are reported."""
    taken: int = 2
    """A lane whose owner changes so often while doctor looks is reported."""
    paused: timedelta = timedelta(hours=1)
    held: timedelta = timedelta(hours=1)
    running_attempt: timedelta = timedelta(hours=1)
    certificate: timedelta = timedelta(days=21)


# -- facts -----------------------------------------------------------------------------------------------------------


class NotKnown(Exception):
    """A fact that could not be gathered; the text says why."""


class Facts:
    """Facts by name. Asking for one that could not be gathered raises NotKnown with the reason."""

    def __init__(self, known: Mapping[str, Any] | None = None, unknown: Mapping[str, str] | None = None) -> None:
        self._known = dict(known or {})
        self._unknown = dict(unknown or {})

    def __getitem__(self, name: str) -> Any:
        if name in self._known:
            return self._known[name]
        raise NotKnown(self._unknown.get(name, f"{name} is not known"))

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def why_not(self, name: str) -> str | None:
        """The reason why a fact is not known; None if it is known, or was not asked for."""
        return None if name in self._known else self._unknown.get(name)

    def know(self, name: str, value: Any) -> None:
        """Note a fact."""
        self._known[name] = value

    def miss(self, name: str, reason: str) -> None:
        """Note that a fact can't be known."""
        self._unknown[name] = reason

    def __or__(self, others: Facts) -> Facts:
        return Facts(self._known | others._known, self._unknown | others._unknown)


# -- judgements ------------------------------------------------------------------------------------------------------


class Verdict(msgspec.Struct, frozen=True):
    """A judgement, without the name of its check."""

    level: Level
    text: str
    fix: str | None = None
    evidence: Mapping[str, Any] = {}


def ok(text: str, /, **evidence: Any) -> Verdict:
    """All is well."""
    return Verdict(Level.OK, text, None, evidence)


def skipped(reason: str, /, **evidence: Any) -> Verdict:
    """The check could not be made."""
    return Verdict(Level.SKIPPED, reason, None, evidence)


def warning(text: str, fix: str, /, **evidence: Any) -> Verdict:
    """It works now, and something should be done."""
    return Verdict(Level.WARNING, text, fix, evidence)


def error(text: str, fix: str, /, **evidence: Any) -> Verdict:
    """Messages are not delivered, or soon will not be, or could be lost."""
    return Verdict(Level.ERROR, text, fix, evidence)


Judge = Callable[[Facts, Limits], "Verdict | Iterable[Verdict]"]


@dataclass(frozen=True, slots=True)
class Check:
    """A check. Its name is also its anchor in the documentation."""

    name: str
    family: str
    title: str
    """What it makes sure of, in one line."""
    needs: tuple[str, ...]
    """The facts without which it is not made."""
    judge: Judge

    def findings(self, facts: Facts, limits: Limits) -> list[Finding]:
        """Judge the facts. A fact that is not known makes the check skipped."""
        try:
            for need in self.needs:
                facts[need]
            judged = self.judge(facts, limits)
            verdicts = [judged] if isinstance(judged, Verdict) else list(judged)
        except NotKnown as reason:
            verdicts = [skipped(str(reason))]
        return [
            Finding(
                check=self.name,
                family=self.family,
                level=each.level,
                text=each.text,
                evidence=each.evidence,
                fix=each.fix,
                link=f"{PAGE}#{self.name}",
            )
            for each in verdicts
        ]


class Checks:
    """The checks of a family, in the order in which they are declared.

    @CHECKS.check("triggers", "triggers")
    def triggers(facts: Facts, limits: Limits) -> Verdict:
        '''The triggers of the log are there and enabled.'''
    """

    def __init__(self, family: str) -> None:
        self.family = family
        self.all: list[Check] = []

    def check(self, name: str, *needs: str) -> Callable[[Judge], Judge]:
        """Declare a check: the function judges the facts, and the first line of its docstring is the title."""

        def declare(judge: Judge) -> Judge:
            title = (judge.__doc__ or "").strip().partition("\n")[0]
            self.all.append(Check(name, self.family, title, needs, judge))
            return judge

        return declare
