"""Chores beside the lanes: deleting what every sink has had, once it is old enough."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import timedelta

    from postroad.stores.base import Store

__all__ = ["Retention"]

logger = logging.getLogger("postroad.retention")


class Retention:
    """Deletes delivered messages in small batches. What any lane has not passed stays, whatever its age."""

    def __init__(self, store: Store, *, retain: timedelta, batch: int = 5000) -> None:
        self._store = store
        self._retain = retain
        self._batch = batch

    async def run_once(self) -> int:
        """Walk from the oldest row to the first batch in which nothing is old enough; say how many were deleted."""
        deleted = through = 0
        while True:
            cleaned = await self._store.delete_passed(after=through, older_than=self._retain, batch=self._batch)
            deleted += cleaned.deleted
            if not cleaned.more or cleaned.through == through:
                break
            through = cleaned.through
        logger.info("deleted %d delivered messages older than %s", deleted, self._retain)
        return deleted
