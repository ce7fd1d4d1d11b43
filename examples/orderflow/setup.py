"""Create the tables of postroad and of the three services: `python -m examples.orderflow.setup`. Again does no harm."""

from __future__ import annotations

import asyncio
import os

from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from examples.orderflow import inventory, mail, orders
from postroad.stores import migrate

PRODUCTS = {"kettle": 1000, "teapot": 0}
BASES = {"orders": orders.Base, "inventory": inventory.Base, "mail": mail.Base}


def set_up(databases: dict[str, str]) -> None:
    """The databases are URLs as postroad takes them, by the name of the service."""
    for name, base in BASES.items():
        asyncio.run(migrate(databases[name]))
        base.metadata.create_all(engine(databases[name]))
    with Session(engine(databases["inventory"])) as session, session.begin():
        for product, free in PRODUCTS.items():
            if session.get(inventory.Stock, product) is None:
                session.add(inventory.Stock(product=product, free=free))


def engine(url: str) -> Engine:
    """A look from outside, which leaves nothing open."""
    return create_engine(url.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool)


if __name__ == "__main__":
    urls = {name: os.environ[f"{name.upper()}_DATABASE"] for name in BASES}
    set_up({name: f"postgresql://{url.partition('://')[2]}" for name, url in urls.items()})
    print("the tables are there")
