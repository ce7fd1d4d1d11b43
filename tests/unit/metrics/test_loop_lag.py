"""The worst delay is remembered for a while, and then forgotten."""

from __future__ import annotations

import asyncio
import time

from postroad.metrics.loop_lag import EVERY_SECONDS, WINDOW_SECONDS, LoopLag
from tests.polling import until


def test_the_worst_delay_of_two_windows() -> None:
    lag = LoopLag()
    lag.note(0.1, now=0.0)
    lag.note(0.5, now=1.0)
    lag.note(0.2, now=2.0)
    assert lag.worst == 0.5
    lag.note(0.0, now=WINDOW_SECONDS + 3)
    assert lag.worst == 0.5
    lag.note(0.0, now=2 * WINDOW_SECONDS + 4)
    assert lag.worst == 0.0


async def test_a_loop_that_is_blocked_is_noticed() -> None:
    lag = LoopLag()
    lag.start()
    await asyncio.sleep(0)
    time.sleep(EVERY_SECONDS + 0.3)  # noqa: ASYNC251 - this is what blocks the loop
    await until(lambda: lag.worst > 0)
    lag.stop()
    assert lag.worst >= 0.3
