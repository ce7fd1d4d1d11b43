"""The parcel service: each parcel has a version, so that no change overwrites one that it has not seen. SQLAlchemy."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, mapped_column, sessionmaker
from sqlalchemy.orm.exc import StaleDataError

from postroad import Outbox, event, retry_on_conflict
from postroad.conflicts import AlreadyDone

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta
    from uuid import UUID

DATABASE = os.environ.get("DATABASE", "postgresql://localhost/parcels")
Session = sessionmaker(expire_on_commit=False)
outbox = Outbox(source="/parcels")


def connect(database: str) -> None:
    Session.configure(bind=create_engine(database.replace("postgresql:", "postgresql+psycopg:")))


class Base(MappedAsDataclass, DeclarativeBase):
    pass


class Parcel(Base):
    __tablename__ = "parcels"

    id: Mapped[int] = mapped_column(init=False, primary_key=True)
    phone: Mapped[str | None]
    state: Mapped[str] = mapped_column(default="posted")
    version: Mapped[int] = mapped_column(init=False)
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012 - SQLAlchemy's own way to say it


class Text(Base):
    """A call of the handler that sends text messages."""

    __tablename__ = "texts"

    number: Mapped[int] = mapped_column(init=False, primary_key=True)
    message: Mapped[str]
    instance: Mapped[str]


@event("parcel.changed.v1")
@dataclass
class ParcelChanged:
    parcel: int
    phone: str | None
    state: str


def post(phone: str | None, *, deliver_in: timedelta | str | None = None) -> tuple[int, UUID]:
    """Take a parcel in; returns its number, and the id of the message to its recipient."""
    with Session.begin() as session:
        parcel = Parcel(phone)
        session.add(parcel)
        session.flush()
        changed = ParcelChanged(parcel.id, phone, parcel.state)
        return parcel.id, outbox.add(session, changed, key=parcel.id, deliver_in=deliver_in)


def change(
    number: int, state: str, *, give_up: Literal["raise", "log"] = "raise", before_commit: Callable[[], Any] = int
) -> UUID | None:
    """Change the parcel's state, and add the event. If another change came first, load the parcel and try again, up to
    five times with a growing pause; then raise the conflict, or log it and return None. If the parcel already has that
    state, another has done it, and there is nothing to do.
    """

    def work() -> UUID:
        with Session.begin() as session:
            parcel = session.get_one(Parcel, number)
            if parcel.state == state:
                raise AlreadyDone
            before_commit()
            parcel.state = state
            session.flush()  # raises StaleDataError if the version is not the one that was loaded
            return outbox.add(session, ParcelChanged(number, parcel.phone, state), key=number)

    return retry_on_conflict(work, conflicts=StaleDataError, give_up=give_up)
