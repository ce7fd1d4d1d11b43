"""Runs a relay or a consumer as a process. The first SIGTERM or SIGINT asks it to stop, the second ends it at once."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from postroad.events import Stopping
from postroad.heap import collect_seldom
from postroad.listeners import tell
from postroad.metrics import DatabaseReader, Metrics, MetricsServer
from postroad.ops.tracing import flush_spans
from postroad.waiting import cancel_and_wait

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping

    from postroad.config import RelaySettings
    from postroad.consumer import Consumer
    from postroad.consumer import Summary as ConsumerSummary
    from postroad.ops.settings import Settings
    from postroad.relay import Relay, RelayGroup, Summary

__all__ = [
    "GroupOutcome",
    "Outcome",
    "end_process",
    "metrics_server",
    "run_consumer",
    "run_group",
    "run_in_loop",
    "run_relay",
]

T = TypeVar("T")

LAST_SECONDS = 0.2
"""How long to wait for canceled tasks after a relay or a consumer has ended."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Outcome(NamedTuple):
    """How a relay ended."""

    summary: Summary
    stopped: bool
    """A signal stopped it."""
    until_empty: bool
    """It was to end when every message had been published."""

    @property
    def exit_code(self) -> int:
        """1 if it was to publish everything and left messages that it should have published; otherwise 0."""
        done = self.summary
        left = done.refused or done.died or done.lanes_lost or done.lanes_with_deferred
        return 1 if self.until_empty and left else 0


class GroupOutcome(NamedTuple):
    """How the relays of several sinks ended."""

    outcomes: Mapping[str, Outcome]
    errors: Mapping[str, Exception]
    """What has ended a sink's relay."""

    @property
    def exit_code(self) -> int:
        """1 if a relay has failed, or has left messages that it should have published; otherwise 0."""
        return 1 if self.errors or any(each.exit_code for each in self.outcomes.values()) else 0


def metrics_server(settings: Settings, *, database: str | None = None) -> MetricsServer | None:
    """Serves the metrics of this process, and those of a database, if `metrics_port` is set."""
    command = settings.command
    if command.metrics_port is None:
        return None
    reader = None if database is None else DatabaseReader(database, schema=command.schema)
    return MetricsServer(Metrics(database=reader), port=command.metrics_port, host=command.metrics_host)


async def run_relay(relay: Relay, *, until_empty: bool = False, server: MetricsServer | None = None) -> Outcome:
    """Run a relay until it ends or a signal stops it. Call it in the main thread, which receives the signals."""
    stopped = False

    def stop(number: int) -> None:
        nonlocal stopped
        stopped = True
        tell(Stopping(signal=signal.Signals(number).name))
        relay.stop()

    with _first_signal_calls(stop):
        async with server or nullcontext():
            summary = await (relay.run_until_empty() if until_empty else relay.run())
    return Outcome(summary, stopped, until_empty)


async def run_group(
    group: RelayGroup, *, until_empty: bool = False, server: MetricsServer | None = None
) -> GroupOutcome:
    """Run the relays of several sinks until they end or a signal stops them. Call it in the main thread."""

    def stop(number: int) -> None:
        tell(Stopping(signal=signal.Signals(number).name))
        group.stop()

    with _first_signal_calls(stop):
        async with server or nullcontext():
            summaries = await (group.run_until_empty() if until_empty else group.run())
    outcomes = {sink: Outcome(summary, stopped=False, until_empty=until_empty) for sink, summary in summaries.items()}
    return GroupOutcome(outcomes, group.errors)


async def run_consumer(
    consumer: Consumer[Any],
    *,
    relay: RelaySettings,
    until_empty: bool = False,
    server: MetricsServer | None = None,
) -> ConsumerSummary:
    """Run a consumer until it ends or a signal stops it. Call it in the main thread, which receives the signals."""

    def stop(number: int) -> None:
        tell(Stopping(signal=signal.Signals(number).name))
        consumer.stop()

    with _first_signal_calls(stop):
        async with server or nullcontext():
            return await (consumer.run_until_empty(relay=relay) if until_empty else consumer.run(relay=relay))


def run_in_loop(main: Coroutine[Any, Any, T]) -> tuple[T, bool]:
    """Run it in a new event loop, in a process that does nothing else. Returns its result, and whether all of its tasks
    have ended.

    `asyncio.run` would wait forever for a task that does not end when it is canceled, such as one that waits for a
    database that does not answer.
    """
    collect_seldom()
    runner = asyncio.Runner()
    try:
        result = runner.run(main)
    except BaseException:
        if not _left(runner):
            runner.close()
        raise
    if _left(runner):
        return result, False
    runner.close()
    return result, True


def _left(runner: asyncio.Runner) -> bool:
    return bool(runner.run(_cancel_all()))


async def _cancel_all() -> set[asyncio.Task[Any]]:
    return await cancel_and_wait(*(asyncio.all_tasks() - {asyncio.current_task()}), seconds=LAST_SECONDS)


def end_process(code: int) -> NoReturn:
    """End the process without waiting for its threads, as `sys.exit` would. Flushes spans, logs and output first."""
    flush_spans()
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


@contextmanager
def _first_signal_calls(stop: Callable[[int], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()

    def on_signal(number: int, _: object) -> None:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        loop.call_soon_threadsafe(stop, number)  # also wakes a loop that is waiting

    before = [signal.signal(each, on_signal) for each in _SIGNALS]
    try:
        yield
    finally:
        for each, handler in zip(_SIGNALS, before, strict=True):
            signal.signal(each, handler)
