from __future__ import annotations

import asyncio
import threading
from typing import Any

from postroad.brokers.base import Delivery, Revoked
from postroad.brokers.kafka.mailbox import Mailbox


class Meddling:
    """A session. While the mailbox compares it with those that end, the client's thread puts something in."""

    def __init__(self, mailbox: Mailbox, item: Any) -> None:
        self._put: threading.Thread | None = threading.Thread(target=mailbox.put, args=(item,))

    def __hash__(self) -> int:
        if self._put is not None:
            put, self._put = self._put, None
            put.start()
            put.join(0.2)  # it has to wait: what it puts in now would be lost
        return 1


async def test_what_arrives_while_sessions_are_revoked_is_not_lost() -> None:
    mailbox = Mailbox()
    lost: Any = object()
    late = [Delivery(session=object(), tag=9, body=b"late")]
    ours = [Delivery(session=Meddling(mailbox, late), tag=1, body=b"ours")]
    mailbox.put([Delivery(session=lost, tag=1, body=b"lost")])
    mailbox.put(ours)
    mailbox.revoke([lost], lambda: None)
    await asyncio.sleep(0)
    found: list[Any] = []
    async with asyncio.timeout(60):
        while len(found) < 3:
            found.append(await mailbox.get())
    assert [each for each in found if not isinstance(each, Revoked)] == [ours, late]
    (revoked,) = [each for each in found if isinstance(each, Revoked)]
    assert revoked.sessions == {lost}
