"""How long to wait after so many failures in a row. Pure: no clock, no I/O, no randomness."""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = ["FIRST_SECONDS", "ExponentialBackoff"]

FIRST_SECONDS: Final = 0.05
"""The first pause of whatever waits for a database or a broker."""
_MOST_DOUBLINGS: Final = 62
"""More would change nothing, and the number would become too large for a float."""


class ExponentialBackoff(msgspec.Struct, frozen=True):
    """`first` seconds after the first failure, then twice as long after each, up to `longest` seconds.

    It keeps no state: its user counts failures, and begins at 0 again after a success.
    """

    longest: float
    first: float = FIRST_SECONDS

    def after(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row, 1 or more."""
        return min(self.first * 2.0 ** min(failures - 1, _MOST_DOUBLINGS), self.longest)
