"""Events that entities record become messages in the transaction that writes the entity, and never in another.

An entity has `take_events()`, which returns the recorded events and clears them. It is called after a flush that wrote
the entity, when the keys that the database makes are known; and at commit for every entity that the session still has,
because one may have recorded an event without having changed. An error here fails the flush, and so the transaction.

Listeners run in the sync Session, also below an AsyncSession, where SQLAlchemy does the waiting.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import event, inspect
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from postroad.errors import InvalidMessage, InvalidSetting
from postroad.message import Message

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from postroad.outbox import Outbox

__all__ = ["record_events"]

_WRITTEN: Final = "postroad_written"


def record_events(sessions: Any, outbox: Outbox) -> None:
    """Add to `outbox` what the entities of these sessions record.

    `sessions` is a sessionmaker, a scoped_session, a Session class or one Session, or the async counterpart of each.
    """
    target = _sync_target(sessions)

    def add(session: Session, entities: Iterable[Any]) -> None:
        for connection, messages in _by_connection(session, entities):
            outbox.add_many(connection, messages)

    def remember_written(session: Session, _: object) -> None:
        # Here the session still lists what it writes; in the next event it does not, but its entities are complete.
        session.info[_WRITTEN] = _recording([*session.new, *session.dirty, *session.deleted])

    def add_of_written(session: Session, _: object) -> None:
        add(session, session.info.pop(_WRITTEN, ()))

    def add_of_unchanged(session: Session) -> None:
        session.flush()
        add(session, _recording(session.identity_map.values()))

    event.listen(target, "after_flush", remember_written)
    event.listen(target, "after_flush_postexec", add_of_written)
    event.listen(target, "before_commit", add_of_unchanged)


def _recording(entities: Iterable[Any]) -> list[Any]:
    return [entity for entity in entities if hasattr(type(entity), "take_events")]


def _by_connection(session: Session, entities: Iterable[Any]) -> Iterable[tuple[Connection, list[Message]]]:
    """What entities recorded, for the connection that writes them: a session may have several databases."""
    found: dict[Connection, list[Message]] = {}
    for entity in entities:
        messages = _taken(entity)
        if messages:
            connection = session.connection(bind_arguments={"mapper": inspect(entity).mapper})
            found.setdefault(connection, []).extend(messages)
    return found.items()


def _taken(entity: Any) -> list[Message]:
    taken = entity.take_events()
    if not isinstance(taken, Iterable) or isinstance(taken, str | bytes | Mapping):
        raise InvalidMessage(
            f"take_events of {type(entity).__name__} gave {type(taken).__name__}; "
            "it must give a list of events, or of Messages"
        )
    return [each if isinstance(each, Message) else Message(each) for each in taken]


# -- where to listen -------------------------------------------------------------------------------------------------


def _sync_target(sessions: Any) -> Any:
    if isinstance(sessions, Session | sessionmaker | scoped_session):
        return sessions
    if isinstance(sessions, type) and issubclass(sessions, Session):
        return sessions
    # Loaded by whatever made an async session; it can't be loaded where greenlet is not installed.
    if "sqlalchemy.ext.asyncio" in sys.modules and (target := _below_async(sessions)) is not None:
        return target
    raise InvalidSetting(
        f"record_events was given {type(sessions).__name__}; it takes a sessionmaker, a Session class or a Session, "
        "or an async one"
    )


def _below_async(sessions: Any) -> Any:
    """The sync sessions that do the work of async ones; None if these are something else."""
    from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker

    match sessions:
        case AsyncSession():
            return sessions.sync_session
        case async_scoped_session():
            return _below_async(sessions.session_factory)
        case async_sessionmaker():
            made = sessions.kw.get("sync_session_class") or sessions.class_.sync_session_class
            sessions.configure(sync_session_class=(target := _class_of_its_own(made)))
            return target
        case type() if issubclass(sessions, AsyncSession):
            sessions.sync_session_class = _class_of_its_own(sessions.sync_session_class)
            return sessions.sync_session_class
    return None


def _class_of_its_own(made: Callable[..., Session]) -> Any:
    """Below an async session: a class to listen to, so that other sessions of the same class are left alone."""
    return type(made.__name__, (made,), {}) if isinstance(made, type) else made
