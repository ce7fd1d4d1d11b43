"""Feeds a target random input until its time is over. What it finds is shrunk and shown by Hypothesis."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from tests.fuzz.targets import Target

_ROUND = settings(
    max_examples=200,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
)


def fuzz(target: Target, seconds: float, number: int | None = None) -> int:
    """How many inputs the target took. Raises what it found, with the seed that finds it again.

    There is at least one round, however little time there is.
    """
    until, inputs = time.monotonic() + seconds, 0
    numbers = random.Random(number)

    def counted(data: st.DataObject) -> None:
        nonlocal inputs
        inputs += 1
        target(data)

    while True:
        this = numbers.getrandbits(64) if number is None or inputs else number
        try:
            _ROUND(seed(this)(given(st.data())(counted)))()
        except BaseException as error:
            error.add_note(f"target {target.__name__}, found again with: --target {target.__name__} --seed {this}")
            raise
        if time.monotonic() >= until:
            return inputs
