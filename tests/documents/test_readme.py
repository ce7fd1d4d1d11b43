"""The README is run as a reader would: its files written, its commands typed, and what they print compared.

Where the README has a time, a rate or an id, any other will do; and lanes are not in order with each other.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from postroad.brokers.rabbitmq.publisher import RabbitMQPublisher
from tests.services.postgresql import PostgreSQL

README = Path(__file__).parents[2] / "README.md"
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
VARIES = re.compile(
    r"[0-9a-f]{8}-[0-9a-f-]{27}|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+|in \d+\.\d+ s|\([\d,]+/s\)|\|.*\|$|\d+ at most| +"
)


class Step(NamedTuple):
    command: str
    printed: list[str]


def blocks() -> list[tuple[str, str]]:
    return [(kind, text) for kind, text in BLOCK.findall(README.read_text(encoding="utf-8"))]


def steps(text: str) -> Iterator[Step]:
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, *printed = part.rstrip("\n").split("\n")
        yield Step(command, printed)


def alike(line: str) -> str:
    """The line without what differs from run to run."""
    return VARIES.sub(lambda found: " " if found[0].isspace() else "#", line.strip())


def test_the_readme_does_what_it_says(tmp_path: Path, postgresql15: PostgreSQL, vhost: str) -> None:
    postgresql15.start()
    values = {
        "POSTROAD_DATABASE": postgresql15.create_database(),
        "POSTROAD_TO": vhost,
    }
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "120",
    }
    ran = 0
    for kind, text in blocks():
        if kind == "python":
            (tmp_path / text.split("\n")[0].removeprefix("# ")).write_text(text)
            continue
        for step in steps(text):
            ran += 1
            if step.command.startswith("export "):
                name = step.command.split()[1].partition("=")[0]
                environment[name] = values[name]
                continue
            done = subprocess.run(
                shlex.split(step.command), cwd=tmp_path, env=environment, text=True, check=False,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120,
            )  # fmt: skip
            printed = done.stdout.replace(RabbitMQPublisher(vhost).name, "amqp://localhost")
            assert sorted(map(alike, printed.splitlines())) == sorted(map(alike, step.printed)), (
                f"$ {step.command}\n{done.stdout}"
            )
            assert done.returncode == 0
    assert ran >= 8
