"""What both databases check of a message in trouble; lifecycle.py says why."""

from __future__ import annotations

from typing import Final

__all__ = ["BLOCKS", "DUE", "EPOCH", "STATES"]

STATES: Final = "state in ('retrying', 'sending', 'held', 'dead', 'canceled', 'dropped', 'skipped')"
BLOCKS: Final = "state = 'dead' or blocks = (state in ('retrying', 'sending', 'held'))"
DUE: Final = "case state when 'retrying' then due_at is not null when 'held' then true else due_at is null end"
EPOCH: Final = "(epoch is not null) = (state = 'sending')"
