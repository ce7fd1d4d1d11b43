"""Reads a page as a person would: writes its files, types its commands, and compares what they print.

A Python block is a file, which its first line names: `# shop.py`, or `# config/settings.py, at the end`. In a console
block a line that begins with `$ ` is a command, and the lines below it are what it prints. Where a page has a time, a
rate or an id, any other will do; and lanes are not in order with each other. A command that ends in `&` runs until the
page ends. `pip install` is not run: what it names must be enough for the page's imports.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import NamedTuple

__all__ = ["ROOT", "Reader", "Step", "blocks", "imported", "installed", "packages", "steps"]

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
VARIES = re.compile(
    r"[0-9a-f]{8}-[0-9a-f-]{27}|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(,\d+|Z)|in \d+\.\d+ s|\([\d,]+/s\)|\(\d+s ago\)|\|.*\|$"
    r"|\d+ at most|\b\d+s  |\d+\.\d on average|File \".*/| +"
)
PORT = "8000"
"""The port of a page's web server, which is another one here."""


class Step(NamedTuple):
    command: str
    printed: list[str]


def blocks(page: Path) -> list[tuple[str, str]]:
    """The code blocks of a page with their languages."""
    return [(kind, text) for _, kind, text in BLOCK.findall(page.read_text(encoding="utf-8"))]


def steps(text: str) -> Iterator[Step]:
    """The commands of a console block, and what each prints."""
    for part in re.split(r"^\$ ", text.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
        command, *printed = part.rstrip("\n").split("\n")
        yield Step(command, printed)


class Reader:
    """A folder in which a page is followed. `values` replace what it exports, and `shown` what is printed of them."""

    def __init__(self, folder: Path, values: dict[str, str] | None = None, shown: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.values = values or {}
        self.shown = shown or {}
        self.port = str(free_port())
        self.environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "COLUMNS": "120",
            "PYTHONPATH": str(folder),
            "PYTHONDONTWRITEBYTECODE": "1",  # a file that is written again within the same second would be stale
        }
        self.ran: list[str] = []
        self.running: list[subprocess.Popen[bytes]] = []

    def follow(self, page: Path) -> None:
        """Do everything that the page says."""
        try:
            for kind, text in blocks(page):
                if kind == "python":
                    self.write(text)
                elif kind == "console":
                    for step in steps(text):
                        self.do(step)
        finally:
            self.stop()

    def stop(self) -> None:
        """Stop the web servers."""
        for process in self.running:
            process.terminate()
        for process in self.running:
            process.wait(60)

    def write(self, text: str) -> None:
        """Write the file that the block is. Raises AssertionError if its first line does not name it."""
        named = re.match(r"# ([\w./]+\.py)(, at the end)?\n", text)
        assert named is not None, f"the block does not name its file in a first line such as # shop.py:\n{text}"
        file = self.folder / named[1]
        file.parent.mkdir(parents=True, exist_ok=True)
        before = file.read_text(encoding="utf-8") if named[2] else ""
        file.write_text(before + text, encoding="utf-8")

    def do(self, step: Step) -> None:
        """Run one command and compare."""
        self.ran.append(step.command)
        words = shlex.split(step.command.replace(PORT, self.port))
        if words[0] == "export":
            name, _, value = words[1].partition("=")
            self.environment[name] = self.values.get(name, value)
        elif words[-1] == "&":
            self.start(words[:-1])
        elif words[:2] != ["pip", "install"]:
            may_fail = any(" ERROR " in line for line in step.printed)
            printed = curl(words[1:]) if words[0] == "curl" else self.run(words, may_fail=may_fail)
            for real, written in self.shown.items():
                printed = printed.replace(real, written)
            assert sorted(map(alike, printed.splitlines())) == sorted(map(alike, step.printed)), (
                f"$ {step.command}\n{printed}"
            )

    def run(self, words: list[str], *, may_fail: bool) -> str:
        done = subprocess.run(
            words, cwd=self.folder, env=self.environment, text=True, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0 or may_fail, f"$ {shlex.join(words)}\n{done.stdout}"
        return done.stdout

    def start(self, words: list[str]) -> None:
        """Start a web server, and wait until it takes connections."""
        with (self.folder / "server.log").open("wb") as log:
            process = subprocess.Popen(words, cwd=self.folder, env=self.environment, stdout=log, stderr=log)
        self.running.append(process)
        for _ in range(1200):
            with closing(socket.socket()) as probe:
                if probe.connect_ex(("127.0.0.1", int(self.port))) == 0:
                    return
            assert process.poll() is None, (self.folder / "server.log").read_text()
            time.sleep(0.1)
        raise AssertionError(f"{words} does not listen:\n{(self.folder / 'server.log').read_text()}")


def alike(line: str) -> str:
    """The line without what differs from run to run."""
    return VARIES.sub(lambda found: " " if found[0].isspace() else "#", line.strip())


def curl(words: list[str]) -> str:
    """What curl would print for `-X METHOD`, `-H HEADER`, `-d DATA` and a URL."""
    given = {words[at]: words[at + 1] for at in range(len(words) - 1) if words[at].startswith("-")}
    headers = dict([given["-H"].split(": ")]) if "-H" in given else {}
    request = urllib.request.Request(
        f"http://{words[-1]}", method=given.get("-X"), headers=headers,
        data=given["-d"].encode() if "-d" in given else None,
    )  # fmt: skip
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
        return str(answer.read().decode())


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# -- what a page tells to install ------------------------------------------------------------------------------------


def imported(page: Path) -> set[str]:
    """The distributions that the page's files import, but for the standard library and the page's own files."""
    texts = [text for kind, text in blocks(page) if kind == "python"]
    own = {Path(text.split("\n")[0].removeprefix("# ")).parts[0].removesuffix(".py") for text in texts}
    roots = set[str]()
    for node in (node for text in texts for node in ast.walk(ast.parse(text))):
        if isinstance(node, ast.Import):
            roots.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            roots.add(node.module.partition(".")[0])
    known = packages_distributions()
    foreign = roots - own - set(sys.stdlib_module_names)
    return {known.get(each, [each])[0].lower().replace("_", "-") for each in foreign}


def installed(page: Path) -> list[str]:
    """The requirements of every `pip install` of the page."""
    commands = [step.command for kind, text in blocks(page) if kind == "console" for step in steps(text)]
    return [word for each in commands if each.startswith("pip install ") for word in shlex.split(each)[2:]]


def packages(requirements: list[str]) -> set[str]:
    """The distributions that these requirements name, with those of postroad's extras."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    found = set[str]()
    for each in requirements:
        name, _, bracket = each.partition("[")
        found.add(name)
        for extra in bracket.rstrip("]").split(",") if name == "postroad" and bracket else []:
            found.update(re.split(r"[<>=;\[ ]", named)[0] for named in extras[extra])
    return found
