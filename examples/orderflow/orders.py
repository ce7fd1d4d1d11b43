"""The orders service: FastAPI and SQLAlchemy. An order and its event are committed together, or neither is."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator  # noqa: TC003 - FastAPI evaluates annotations
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, mapped_column

from examples.orderflow.events import OrderCreated
from postroad import Outbox
from postroad.asgi import CorrelationMiddleware

engine = create_async_engine(os.environ.get("ORDERS_DATABASE", "postgresql+asyncpg://localhost/orders"))
Session = async_sessionmaker(engine, expire_on_commit=False)
outbox = Outbox(source="/orders")

app = FastAPI(title="orders")
app.add_middleware(CorrelationMiddleware)


class Base(MappedAsDataclass, DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(init=False, primary_key=True)
    email: Mapped[str]
    product: Mapped[str]
    quantity: Mapped[int]


class NewOrder(BaseModel):
    email: str
    product: str
    quantity: int = 1
    card: str = "good"


async def begin() -> AsyncIterator[AsyncSession]:
    """Everything that a request does is one transaction: an error rolls it back."""
    async with Session.begin() as session:
        yield session


# scope="function" commits before the response is sent. The default, "request", commits after it: a client would be told
# 201 although the commit fails.
Transaction = Annotated[AsyncSession, Depends(begin, scope="function")]


@app.post("/orders", status_code=201)
async def place(new: NewOrder, session: Transaction) -> dict[str, int]:
    order = Order(email=new.email, product=new.product, quantity=new.quantity)
    session.add(order)
    await session.flush()
    await outbox.add(session, OrderCreated(order.id, new.email, new.product, new.quantity), key=order.id)
    if new.card == "declined":  # the order and its event were written, and both go with the roll-back
        raise HTTPException(402, "the card was declined")
    return {"order": order.id}
