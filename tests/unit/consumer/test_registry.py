"""What is wrong with a handler is reported when it is registered, and names it."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Any, ForwardRef

import asyncpg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from postroad import Consumer, InvalidSetting, Received, upcast
from postroad.consumer.begin import is_async_begin
from postroad.consumer.signatures import annotation_of

if TYPE_CHECKING:
    from somewhere import Unknown  # type: ignore[import-not-found]


@dataclass
class Placed:
    order: int


@dataclass
class PlacedInHaste(Placed):
    pass


@dataclass
class Canceled:
    order: int


@asynccontextmanager
async def begin() -> AsyncIterator[Any]:
    yield


@contextmanager
def begin_sync() -> Iterator[Any]:
    yield


def a_consumer(is_async: bool = True) -> Consumer[Any]:
    return Consumer(name="stock", begin=begin if is_async else begin_sync)


async def two(event: Placed, tx: Any) -> None: ...
async def four(event: Placed, tx: Any, message: Received, more: int) -> None: ...
async def by_name(event: Placed, tx: Any, message: Received, *, clock: Any) -> None: ...
async def swapped(message: Any, tx: Any, event: Any) -> None: ...
async def other_event(event: Canceled, tx: Any, message: Received) -> None: ...
async def narrower(event: PlacedInHaste, tx: Any, message: Received) -> None: ...
async def neither(event: Canceled | str, tx: Any, message: Received) -> None: ...
async def no_message(event: Placed, tx: Any, message: dict[str, Any]) -> None: ...
async def no_transaction(event: Placed, tx: Received, message: Any) -> None: ...
async def sync_session(event: Placed, tx: Session, message: Received) -> None: ...
def async_session(event: Placed, tx: AsyncSession, message: Received) -> None: ...
async def generator(event: Placed, tx: Any, message: Received) -> Any:
    yield


@pytest.mark.parametrize(
    ("handler", "wrong"),
    [
        (two, r"handler two\(.*\) can't be called with 3 arguments: too many positional arguments; a handler takes"),
        (four, r"handler four\(.*\) can't be called with 3 arguments: missing a required argument: 'more'"),
        (by_name, r"handler by_name\(.*missing a required (keyword-only )?argument: 'clock'"),
        (swapped, r"handler swapped\(.*\) has its parameters in another order; a handler takes \(event, tx, message\)"),
        (other_event, r"handler other_event.*annotated with Canceled, and it is registered for Placed"),
        (narrower, r"handler narrower.*annotated with PlacedInHaste, and it is registered for Placed"),
        (neither, r"handler neither.*annotated with .*Canceled \| str, and it is registered for Placed"),
        (no_message, r"handler no_message.*third parameter is annotated with dict.*is given a Received"),
        (no_transaction, r"handler no_transaction.*second parameter is annotated with Received"),
        (sync_session, r"handler sync_session.*`async def`, and its transaction is annotated with Session, a sync one"),
        (async_session, r"handler async_session.*`def`, and its transaction .* AsyncSession, an async one"),
        (generator, "handler generator has a yield"),
        (7, "a handler is 7; it must be a function"),
    ],
)  # fmt: skip
def test_a_handler_that_can_t_be_called(handler: Any, wrong: str) -> None:
    it = a_consumer(handler is not async_session)
    with pytest.raises(InvalidSetting, match=wrong):
        it.on(Placed)(handler)
    assert it._handlers.types == []


async def single(event: Placed, tx: Any, message: Received) -> None: ...
async def pairs(batch: Placed, tx: Any) -> None: ...


@pytest.mark.parametrize(
    ("handler", "wrong"),
    [
        (single, r"handler single\(.*\) can't be called with 2 arguments.*a handler takes \(batch, tx\)"),
        (pairs, r"handler pairs.*annotated with Placed, and is given a sequence of pairs"),
    ],
)
def test_a_handler_of_batches_that_can_t_be_called(handler: Any, wrong: str) -> None:
    with pytest.raises(InvalidSetting, match=wrong):
        a_consumer().on_batch(Placed)(handler)


class Handler:
    async def __call__(self, event: Placed, tx: Any, message: Received) -> None: ...
    async def method(self, event: Placed, tx: Any, message: Received) -> None: ...


async def bare(e, t, m): ...  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201
async def anything(*given: Any) -> None: ...
async def default(event: Placed, tx: Any, message: Received, limit: int = 3) -> None: ...
async def any_thing(event: Any, tx: Any, message: Any) -> None: ...
async def wider(event: object, tx: object, message: object) -> None: ...
async def union(event: Placed | Canceled, tx: AsyncSession, message: Received) -> None: ...
async def annotated(
    event: Annotated[Placed, 1], tx: asyncpg.Connection[Any], message: Annotated[Received, 2]
) -> None: ...
async def unknown(event: Unknown, tx: Unknown, message: Unknown) -> None: ...
async def with_clock(clock: Any, event: Placed, tx: Any, message: Received) -> None: ...


# Without `from __future__ import annotations`: from Python 3.14 on, annotations are evaluated when they are asked for.
LAZY = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from somewhere import Unknown
async def handler(event: Unknown, tx: Unknown, message: Unknown) -> None: ...
async def with_class(event: Canceled, tx: Unknown, message: Received) -> None: ...
def upcast(old: Unknown) -> dict: ...
"""


@pytest.mark.skipif(sys.version_info < (3, 14), reason="before Python 3.14 the def itself raises NameError")
def test_names_for_type_checkers_may_be_missing() -> None:
    names: dict[str, Any] = {"Canceled": Canceled, "Received": Received}
    exec(compile(LAZY, "handlers.py", "exec", dont_inherit=True), names)
    a_consumer().on(Placed)(names["handler"])
    with pytest.raises(InvalidSetting, match="is annotated with Canceled, and it is registered for Placed"):
        a_consumer().on(Placed)(names["with_class"])
    with pytest.raises(InvalidSetting, match=r"\(old: Unknown\) can't be evaluated"):
        upcast("a", to="b")(names["upcast"])


def test_what_can_not_be_evaluated_is_not_checked() -> None:
    parameter = Parameter("event", Parameter.POSITIONAL_ONLY, annotation=ForwardRef("Unknown"))
    assert annotation_of(parameter, single) is None


@pytest.mark.parametrize(
    "handler",
    [single, Handler(), Handler().method, bare, anything, any_thing, default, wider, union, annotated, unknown,
     partial(with_clock, object())],
)  # fmt: skip
def test_handlers_of_every_right_shape(handler: Any) -> None:
    it = a_consumer()
    it.on(Placed)(handler)
    assert it._handlers.types == ["placed"]


async def many(batch: Sequence[tuple[Placed, Received]], tx: AsyncSession) -> None: ...


def test_a_batch_of_the_right_shape() -> None:
    a_consumer().on_batch(Placed)(many)


def test_a_second_handler_for_a_type_names_both() -> None:
    it = a_consumer()
    it.on(Placed)(single)
    with pytest.raises(InvalidSetting, match="has a handler for 'placed' already, single; default would replace it"):
        it.on(Placed)(default)


def plain(event: Placed, tx: Any, message: Received) -> None: ...


@pytest.mark.parametrize(
    ("is_async", "handler", "wrong"),
    [
        (True, plain, r"handler plain is `def`, and begin is .*\.begin, which gives an async context manager"),
        (False, single, r"handler single is `async def`, and begin is .*\.begin_sync, which gives a sync"),
    ],
)  # fmt: skip
def test_begin_s_kind_is_compared_when_a_handler_is_registered(is_async: bool, handler: Any, wrong: str) -> None:
    with pytest.raises(InvalidSetting, match=wrong):
        a_consumer(is_async).on(Placed)(handler)


@pytest.mark.parametrize(
    ("make", "is_async"),
    [
        (lambda: begin, True),
        (lambda: begin_sync, False),
        (lambda: partial(begin), True),
        (lambda: sessionmaker().begin, False),
        (lambda: async_sessionmaker().begin, True),
        (lambda: create_engine("sqlite://").begin, False),
        (lambda: create_async_engine("sqlite+aiosqlite://").begin, True),
        (lambda: Session, False),
        (lambda: AsyncSession, True),
        (lambda: lambda: None, None),
    ],
)
def test_the_kind_of_a_begin(make: Callable[[], Any], is_async: bool | None) -> None:
    assert is_async_begin(make()) is is_async
