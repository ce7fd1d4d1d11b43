"""`examine`: all checks of a database, its relays, their broker and the settings. It changes nothing.

Facts are gathered first, each alone; then every check judges those it needs. A check whose facts could not be gathered
is skipped. One check is one function, in the file of its family; a broker brings its own.
"""

from __future__ import annotations

from postroad.doctor.examine import ConsumerFacts, SecretFile, all_checks, examine, examine_carrier
from postroad.doctor.replication import Carrier
from postroad.findings import Check, Finding, Level, Limits

__all__ = [
    "Carrier",
    "Check",
    "ConsumerFacts",
    "Finding",
    "Level",
    "Limits",
    "SecretFile",
    "all_checks",
    "examine",
    "examine_carrier",
]
