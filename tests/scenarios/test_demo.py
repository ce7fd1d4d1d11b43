"""The demo, as a newcomer runs it. What it claims is checked against the files it leaves behind."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

import pytest

from postroad.ops.demo.audit import Audit, Books, Entry, audit

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ORDERS = 100


class Run(NamedTuple):
    code: int
    output: str
    directory: Path

    def number(self, what: str) -> int:
        """A line of the audit."""
        found = re.search(rf"^ .{{6}} {re.escape(what)} +([\d,]+)  ", self.output, re.MULTILINE)
        assert found, f"no {what!r} in:\n{self.output}"
        return int(found[1].replace(",", ""))


def run_demo(directory: Path, *arguments: str) -> Run:
    # Neither a colour-loving environment nor a wide one may put control characters into a pipe.
    done = subprocess.run(
        [sys.executable, "-m", "postroad", "demo", "--directory", str(directory), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=120,
        env=os.environ | {"FORCE_COLOR": "1", "TERM": "xterm-256color"},
    )
    return Run(done.returncode, done.stdout.decode(), directory)


@pytest.fixture(scope="module")
def with_outbox(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_demo(tmp_path_factory.mktemp("outbox"), "--orders", str(ORDERS), "--seed", "7")


@pytest.fixture(scope="module")
def sabotaged(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_demo(tmp_path_factory.mktemp("sabotage"), "--orders", str(ORDERS), "--seed", "7", "--sabotage")


def numbers(file: Path, query: str) -> list[int]:
    with closing(sqlite3.connect(file)) as connection:
        return [row[0] for row in connection.execute(query)]


def test_nothing_is_lost_or_made_up_though_processes_are_killed(with_outbox: Run) -> None:
    assert with_outbox.code == 0, with_outbox.output
    assert "PASSED" in with_outbox.output
    for what in ("lost", "phantoms", "log mismatch", "out of order"):
        assert with_outbox.number(what) == 0
    assert with_outbox.number("orders rolled back") == ORDERS / 5


def test_the_relay_is_really_killed_while_it_publishes(with_outbox: Run) -> None:
    killed = re.findall(r"relay +killed with SIGKILL while publishing, with (\d+) orders to go", with_outbox.output)
    assert len(killed) == 2, with_outbox.output
    assert len(re.findall("shop +killed with SIGKILL", with_outbox.output)) == 1
    # A killed relay can't say goodbye, and the one that drained the log did.
    log = (with_outbox.directory / "relay.log").read_text()
    assert (log.count("took 4 lanes"), log.count("relay default: ended")) == (3, 1)


def test_the_audit_says_what_the_files_say(with_outbox: Run) -> None:
    shop, warehouse = with_outbox.directory / "shop.sqlite", with_outbox.directory / "warehouse.sqlite"
    orders = numbers(shop, "select number from orders")
    deliveries = numbers(warehouse, "select number from deliveries")
    assert set(deliveries) == set(orders)
    assert with_outbox.number("orders placed") == len(orders) == len(numbers(shop, "select 1 from postroad_outbox"))
    assert with_outbox.number("deliveries") == len(deliveries)
    assert with_outbox.number("duplicates") == len(deliveries) - len(orders)


def test_sabotage_fails_the_audit(sabotaged: Run) -> None:
    assert sabotaged.code == 1, sabotaged.output
    assert "FAILED" in sabotaged.output
    assert sabotaged.number("phantoms") > 0
    assert sabotaged.number("lost") > 0
    shop, warehouse = sabotaged.directory / "shop.sqlite", sabotaged.directory / "warehouse.sqlite"
    orders, arrived = (
        set(numbers(shop, "select number from orders")),
        set(numbers(warehouse, "select number from deliveries")),
    )
    assert (sabotaged.number("phantoms"), sabotaged.number("lost")) == (len(arrived - orders), len(orders - arrived))


def test_a_pipe_gets_lines_and_no_control_characters(with_outbox: Run, sabotaged: Run) -> None:
    for run in (with_outbox, sabotaged):
        assert re.findall(r"[^\n\x20-\x7e]", run.output) == []
        assert all(line == line.rstrip() for line in run.output.splitlines())


def test_a_folder_that_is_in_use_is_refused(with_outbox: Run) -> None:
    again = run_demo(with_outbox.directory)
    assert again.code == 2
    assert again.output.startswith("postroad: directory is ")
    assert again.output.count("\n") == 1


def test_without_a_folder_nothing_is_left_behind(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "postroad", "demo", "--orders", "20", "--sabotage"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=120,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    assert f"files  {tmp_path}" in done.stdout
    assert list(tmp_path.iterdir()) == []


# -- the audit itself ------------------------------------------------------------------------------------------------


def audited(orders: Sequence[int], deliveries: Sequence[int], *, logged: int | None = None) -> Audit:
    """Odd orders are of one customer, even ones of another."""
    entries = [
        [Entry(number, "odd" if number % 2 else "even") for number in numbers] for numbers in (orders, deliveries)
    ]
    return audit(Books(entries[0], 0, len(orders) if logged is None else logged, entries[1]))


def test_the_audit_passes_duplicates_and_any_order_of_different_customers() -> None:
    result = audited([1, 2, 3, 4], [2, 1, 2, 3, 1, 4, 2])
    assert (result.passed, result.duplicates, result.deliveries, result.customers) == (True, 3, 7, 2)


@pytest.mark.parametrize(
    ("result", "wrong"),
    [
        (audited([1, 2, 3], [1, 3]), {"lost": 1}),
        (audited([1, 3], [1, 2, 3, 2]), {"phantoms": 1}),
        (audited([1, 2, 3, 4], [3, 1, 3, 2, 4]), {"disordered": 1}),
        (audited([1, 2, 3, 4], [4, 3, 2, 1]), {"disordered": 2}),
        (audited([1, 2], [1, 2], logged=3), {}),
        (audited([], []), {}),
    ],
)
def test_the_audit_fails(result: Audit, wrong: dict[str, int]) -> None:
    assert not result.passed
    found = {"lost": result.lost, "phantoms": result.phantoms, "disordered": result.disordered}
    assert {name: number for name, number in found.items() if number} == wrong
