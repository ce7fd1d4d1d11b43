"""The mail service: it receives what became of the stock, and writes to the customer. Plain functions, run in threads.

An e-mail can't be rolled back. It is sent before the commit, so a kill between the two sends it again; the message's id
goes along as the idempotency key, for a mail service that knows what to do with one.
"""

from __future__ import annotations

import os
import smtplib
from email.message import EmailMessage

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, Session, mapped_column, sessionmaker

from examples.orderflow.events import StockMissing, StockReserved
from postroad import Consumer, Received

engine = create_engine(os.environ.get("MAIL_DATABASE", "postgresql+psycopg://localhost/mail"))
consumer = Consumer(
    os.environ.get("BROKER", "amqp://localhost"), name="mail", begin=sessionmaker(engine).begin, concurrency=4
)


class Base(MappedAsDataclass, DeclarativeBase):
    pass


class Sent(Base):
    __tablename__ = "sent"

    message: Mapped[str] = mapped_column(primary_key=True)
    order: Mapped[int]
    subject: Mapped[str]


@consumer.on(StockReserved)
def confirm(event: StockReserved, tx: Session, message: Received) -> None:
    write(event.email, f"Order {event.order}: your {event.product} is on its way", event.order, tx, message)


@consumer.on(StockMissing)
def apologize(event: StockMissing, tx: Session, message: Received) -> None:
    write(event.email, f"Order {event.order}: we have no {event.product} left", event.order, tx, message)


def write(to: str, subject: str, order: int, tx: Session, message: Received) -> None:
    tx.add(Sent(message=message.id, order=order, subject=subject))
    tx.flush()  # whatever the database has against it is better known before the e-mail is out
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "shop@example.org", to, subject
    mail["X-Idempotency-Key"] = message.id
    mail["X-Correlation-Id"] = message.correlation_id or ""
    mail.set_content("Thank you.")
    with smtplib.SMTP(os.environ.get("SMTP_HOST", "localhost"), int(os.environ.get("SMTP_PORT", "25"))) as server:
        server.send_message(mail)
