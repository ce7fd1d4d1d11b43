"""Types that are skipped are reported once each, and made-up ones fill neither the log nor the memory."""

from __future__ import annotations

from postroad.brokers.skipped_types import MOST, SkippedTypes
from postroad.events import Event, TypeSkipped


def test_each_type_is_reported_once_and_not_more_than_so_many() -> None:
    reported: list[Event] = []
    skipped = SkippedTypes("warehouse", reported.append)
    for number in range(2 * MOST):
        for _ in range(2):
            skipped.note(f"made up {number}", "orders")
    assert reported == [TypeSkipped("warehouse", message_type=f"made up {n}", source="orders") for n in range(MOST)]
