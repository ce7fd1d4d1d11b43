"""rabbitmq: the figures of benchmarks/rabbitmq.py as a section like the others."""

from __future__ import annotations

import asyncio

from benchmarks.sections import Plan, Section
from tests.services.server import ServerMissing


def run(plan: Plan) -> Section:
    section = Section(
        "rabbitmq",
        "Publishing to RabbitMQ, every message confirmed",
        ["", "messages/s", "slowest", "fastest", "of socket"],
    )
    try:
        from benchmarks.rabbitmq import measure
        from tests.services.rabbitmq import RabbitMQ

        with RabbitMQ() as server:
            rates = asyncio.run(measure(server.url(), rounds=plan.rounds(7)))
    except (ServerMissing, ModuleNotFoundError) as missing:
        section.notes.append(f"Left out: {missing}")
        return section
    for name, rate in rates.items():
        share = f"{rate.median / rates['socket'].median:.0%}"
        section.rows.append([name, *(f"{each:,.0f}" for each in rate), share])
    section.raw = {name: rate._asdict() for name, rate in rates.items()}
    return section
