"""Draws docs/pictures/dashboard.svg: each panel of the dashboard, from what a real Prometheus answers to its queries.

    python -m tests.pictures.dashboard

A relay and a consumer run for a minute and a half; meanwhile the sink is paused for a moment, and some messages fail.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from html import escape
from typing import Any

from postroad import Message
from postroad.admin import By, open_admin
from tests.destinations import bound_queue, rabbitmq_channel
from tests.logs import PostgreSQLLog
from tests.relays import ROOT
from tests.services.postgresql import PostgreSQL
from tests.services.prometheus import Prometheus
from tests.services.rabbitmq import RabbitMQ
from tests.services.server import free_port

DASHBOARD = ROOT / "deploy" / "grafana" / "postroad.json"
PICTURE = ROOT / "docs" / "pictures" / "dashboard.svg"
SECONDS = 90
COLUMN, LINE, GAP = 40, 17, 6
COLOURS = ("#3b7dd8", "#e0752d", "#3a9d5d", "#b04bb5", "#c9a227", "#d64550", "#5f6b7a", "#26a3a3")
VARIABLES = {"$job": ".*", "$sink": ".*", "$__rate_interval": "10s", "${datasource}": ""}
UNITS = {"s": " s", "bytes": " B", "short": ""}

Series = tuple[str, list[tuple[float, float]]]
Box = tuple[float, float, float, float]
STEP = 2


# -- the data --------------------------------------------------------------------------------------------------------


async def a_minute_and_a_half(log: PostgreSQLLog, vhost: str) -> None:
    """Orders arrive, more and fewer of them; one in two hundred fails three times; the sink is paused for a moment."""
    async with rabbitmq_channel(vhost) as channel:
        await bound_queue(channel, "rest", "other.#")
    await log.add(Message({}, type="nobody.wants.this"))
    began, order = time.monotonic(), 0
    async with open_admin(log.url) as admin:
        paused = False
        while (seconds := time.monotonic() - began) < SECONDS:
            number = int(30 + 25 * math.sin(seconds / 8))
            poison = [{"poison": "fails three times"} if n % 200 == 7 else {} for n in range(order, order + number)]
            await log.add(*(
                Message({"order": order + n, **more}, type="order.created", key=(order + n) % 50)
                for n, more in enumerate(poison)
            ))  # fmt: skip
            order += number
            if (45 < seconds < 52) != paused:
                paused = not paused
                await (admin.pause if paused else admin.resume)("default", By("anna", "the warehouse moves house"))
            await asyncio.sleep(0.4)


def asked(prometheus: Prometheus, panel: dict[str, Any], end: float) -> list[Series]:
    found: list[Series] = []
    for target in panel["targets"]:
        query = target["expr"]
        for variable, value in VARIABLES.items():
            query = query.replace(variable, value)
        answer = prometheus.get("query_range", query=query, start=str(end - SECONDS), end=str(end), step=str(STEP))
        for series in answer["result"]:
            legend = target["legendFormat"]
            for label, value in series["metric"].items():
                legend = legend.replace("{{" + label + "}}", value)
            points = [(float(at), float(value)) for at, value in series["values"]]
            found.append((legend, [(at - end + SECONDS, value) for at, value in points if math.isfinite(value)]))
    return [each for each in found if each[1]]


# -- the picture -----------------------------------------------------------------------------------------------------


def text(x: float, y: float, words: str, *, size: int = 11, colour: str = "#333", anchor: str = "start") -> str:
    where = f'x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}"'
    return f'<text {where} font-size="{size}" fill="{colour}">{escape(words)}</text>'


def shown(value: float, unit: str) -> str:
    if unit == "bytes":
        return f"{value / 1e6:.1f} MB"
    if unit == "s" and value and value < 1:
        return f"{value * 1000:.3g} ms"
    return f"{value:,.4g}{UNITS[unit]}"


def drawn(panel: dict[str, Any], series: list[Series]) -> str:
    place, unit = panel["gridPos"], panel["fieldConfig"]["defaults"]["unit"]
    left, top = place["x"] * COLUMN + GAP / 2, place["y"] * LINE + GAP / 2
    width, height = place["w"] * COLUMN - GAP, place["h"] * LINE - GAP
    parts = [
        f'<rect x="{left:.0f}" y="{top:.0f}" width="{width}" height="{height}" rx="3" fill="#fff" stroke="#ddd"/>',
        text(left + 8, top + 15, panel["title"], size=12, colour="#111"),
    ]
    if panel["type"] == "stat":
        for number, (legend, points) in enumerate(series[:2]):
            words = shown(points[-1][1], unit) + (f" {legend.removeprefix('default ')}" if len(series) > 1 else "")
            colour = "#d64550" if is_red(panel, points[-1][1]) else "#3a9d5d"
            size = 22 if len(series) == 1 else 14
            y = top + 42 + 18 * number
            parts.append(text(left + width / 2, y, words, size=size, colour=colour, anchor="middle"))
    elif panel["type"] == "table":
        parts += [text(left + 8, top + 36 + 16 * n, legend) for n, (legend, _) in enumerate(series)]
    else:
        box = (left + 10, top + 24, width - 20, height - 52)
        parts += heatmap(series, box) if panel["type"] == "heatmap" else lines(series, unit, box)
    return "\n".join(parts)


def is_red(panel: dict[str, Any], value: float) -> bool:
    colour = "green"
    for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]:
        if step["value"] is None or value >= step["value"]:
            colour = step["color"]
    return colour == "red"


def lines(series: list[Series], unit: str, box: Box) -> list[str]:
    x, y, width, height = box
    top = max((value for _, points in series for _, value in points), default=0) or 1
    parts = [text(x + width, y + 8, shown(top, unit), size=9, colour="#888", anchor="end")]
    parts.append(f'<path d="M{x:.0f} {y + height:.0f}h{width:.0f}" stroke="#ccc"/>')
    at = x
    by_size = sorted(series, key=lambda each: max(value for _, value in each[1]), reverse=True)
    for number, (legend, points) in enumerate(by_size):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x + s / SECONDS * width:.0f},{y + height - max(0, v) / top * height:.0f}" for s, v in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        if at + 6.2 * len(legend) < x + width:
            parts.append(text(at, y + height + 16, legend, size=10, colour=colour))
        at += 6.2 * len(legend) + 8
    return parts


def heatmap(series: list[Series], box: Box) -> list[str]:
    """Buckets as they are, not cumulative; the darker, the more messages."""
    x, y, width, height = box
    bounds = sorted(((float(legend), dict(points)) for legend, points in series), key=lambda each: each[0])
    cells: list[tuple[int, float, float]] = []
    for row, (_, points) in enumerate(bounds):
        before = bounds[row - 1][1] if row else {}
        cells += [(row, at, value - before.get(at, 0)) for at, value in points.items() if value > before.get(at, 0)]
    most = max((value for _, _, value in cells), default=1)
    tall, wide = height / max(1, len(bounds)), width / SECONDS * STEP
    parts = [
        f'<rect x="{x + at / SECONDS * width:.1f}" y="{y + height - (row + 1) * tall:.1f}" width="{wide + 0.3:.1f}" '
        f'height="{tall:.1f}" fill="#3b7dd8" fill-opacity="{0.1 + 0.9 * value / most:.2f}"/>'
        for row, at, value in cells
    ]
    for row, (bound, _) in enumerate(bounds[::3]):
        label = "+Inf" if math.isinf(bound) else shown(bound, "s")
        parts.append(text(x + width, y + height - 3 * row * tall, label, size=9, colour="#888", anchor="end"))
    return parts


def picture(prometheus: Prometheus) -> str:
    panels, end = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"], time.time()
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels) * LINE + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {24 * COLUMN} {height}" font-family="sans-serif">',
        f'<rect width="100%" height="{height}" fill="#f4f5f7"/>',
    ]
    for panel in panels:
        place = panel["gridPos"]
        if panel["type"] == "row":
            parts.append(text(8, place["y"] * LINE + 14, panel["title"], size=13, colour="#111"))
        else:
            parts.append(drawn(panel, asked(prometheus, panel, end)))
    return "\n".join([*parts, "</svg>", ""])


async def main() -> str:
    with ExitStack() as stack:
        postgresql, rabbitmq = stack.enter_context(PostgreSQL(15, durable=False)), stack.enter_context(RabbitMQ())
        log, vhost = await PostgreSQLLog.fresh(postgresql), rabbitmq.create_vhost()
        await log.execute('create table effects ("order" integer, attempt integer)')
        ports = free_port(), free_port()
        environment = os.environ | {
            "PYTHONPATH": str(ROOT), "POSTROAD_DATABASE": log.url, "POSTROAD_TO": vhost, "POSTROAD_LOG_LEVEL": "error",
            "SERVICE_DATABASE": log.url, "SERVICE_BROKER": vhost,
        }  # fmt: skip
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        commands = (("consume", "--app", "tests.scenarios.services:alone"), ("relay",))
        for command, port in zip(commands, ports, strict=True):
            process = subprocess.Popen(  # noqa: ASYNC220 - nothing else runs in this loop
                [sys.executable, "-m", "postroad", *command, "--metrics-port", str(port)], env=environment, cwd=folder
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)
            await asyncio.sleep(2)  # the queue before the first message
        prometheus = stack.enter_context(Prometheus(ports))
        await a_minute_and_a_half(log, vhost)
        drawing = picture(prometheus)
        await log.close()
    return drawing


if __name__ == "__main__":
    PICTURE.write_text(asyncio.run(main()), encoding="utf-8")
