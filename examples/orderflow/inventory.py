"""The inventory service: it receives orders, reserves stock, and adds an event; all of it in one transaction."""

from __future__ import annotations

import os

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, mapped_column

from examples.orderflow.events import OrderCreated, StockMissing, StockReserved
from postroad import Consumer, Outbox, Received

engine = create_async_engine(os.environ.get("INVENTORY_DATABASE", "postgresql+asyncpg://localhost/inventory"))
Session = async_sessionmaker(engine)
outbox = Outbox(source="/inventory")
consumer = Consumer(os.environ.get("BROKER", "amqp://localhost"), name="inventory", begin=Session.begin)


class Base(MappedAsDataclass, DeclarativeBase):
    pass


class Stock(Base):
    __tablename__ = "stock"

    product: Mapped[str] = mapped_column(primary_key=True)
    free: Mapped[int]


class Reservation(Base):
    __tablename__ = "reservations"

    id: Mapped[int] = mapped_column(init=False, primary_key=True)
    order: Mapped[int]
    quantity: Mapped[int]


@consumer.on(OrderCreated)
async def reserve(event: OrderCreated, tx: AsyncSession, message: Received) -> None:
    stock = await tx.scalar(select(Stock).where(Stock.product == event.product).with_for_update())
    if stock is None or stock.free < event.quantity:
        await outbox.add(tx, StockMissing(event.order, event.email, event.product), key=event.order)
        return
    stock.free -= event.quantity
    tx.add(Reservation(order=event.order, quantity=event.quantity))
    await outbox.add(tx, StockReserved(event.order, event.email, event.product), key=event.order)
