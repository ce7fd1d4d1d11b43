"""How long a consumer waits for what is unavailable: with `--until-empty` there is a limit. No I/O."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Literal

from postroad.backoff import ExponentialBackoff
from postroad.errors import BrokerUnavailable, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroad.errors import PostroadError

__all__ = ["BACKOFF", "Dependency", "Outages"]

BACKOFF: Final = ExponentialBackoff(longest=5.0)
"""The pauses between two tries while something is unavailable."""

Dependency = Literal["database", "broker", "dead letters"]

_ERRORS: Final[dict[Dependency, Callable[[str], PostroadError]]] = {
    "database": StoreUnavailable,
    "broker": BrokerUnavailable,
    "dead letters": BrokerUnavailable,
}


class Outages:
    """What is unavailable, and since when. After `limit` seconds `give_up` is called, once; `given_up` is the error."""

    def __init__(
        self, limit: float | None, give_up: Callable[[], None], *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit = float("inf") if limit is None else limit
        self._give_up = give_up
        self._now = now
        self._since: dict[Dependency, float] = {}
        self.given_up: PostroadError | None = None

    def begin(self, what: Dependency, reason: str, pause: float) -> float:
        """Note that it is unavailable. Returns seconds until the next try: `pause`, or less if the limit is near."""
        now = self._now()
        left = self._since.setdefault(what, now) + self._limit - now
        if left <= 0 and self.given_up is None:
            self.given_up = _ERRORS[what](
                f"gave up after waiting {self._limit:g} s (until_empty_timeout) for the {what}: {reason}"
            )
            self._give_up()
        return max(0.0, min(pause, left))

    def end(self, what: Dependency) -> None:
        """Note that it is available."""
        self._since.pop(what, None)
