"""The console as a process: `postroad demo --console`, what its newcomer sees, and `postroad console` itself."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from postroad.stores.sqlite import migrate_sqlite
from tests.consoles import SAME_ORIGIN, Page

SECONDS = 60.0


@contextmanager
def started(*arguments: str, cwd: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A console, and the address that it has printed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "postroad", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=cwd,
    )
    assert process.stdout is not None
    try:
        seen = ""
        for line in process.stdout:
            seen += line
            if found := re.search(r"Open (http://\S+)", line):
                yield found[1], process
                break
        else:
            pytest.fail(f"it has ended: {seen}")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@contextmanager
def signed_in(address: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=address.partition("/sign-in")[0], timeout=SECONDS) as client:
        assert client.get(address).status_code == 200
        yield client


def until(client: httpx.Client, path: str, words: str) -> Page:
    deadline = time.monotonic() + SECONDS
    while words not in (page := Page(client.get(path))).text:
        assert time.monotonic() < deadline, page.text
        time.sleep(0.1)
    return page


def test_a_newcomer_finds_the_trouble_and_mends_it(tmp_path: Path) -> None:
    with started("demo", "--console", "--port", "0", cwd=tmp_path) as (address, process), signed_in(address) as client:
        now = until(client, "/shop/", "dead message")
        for words in ("No relay has served it", "Paused, by ben", "Key 'eva' is held", "blocked route"):
            assert words in now.text
        trouble = until(client, "/shop/trouble", "does not exist")
        assert "order <n>: the depot <n> does not exist" in trouble.text
        preview = Page(client.get(trouble.links["Retry the dead ones"]))
        form = preview.form("/do/retry")
        done = client.post(form.action, data=form.fields | {"reason": "a try"}, headers=SAME_ORIGIN)
        assert done.status_code in {303, 409}  # the shop goes on, and may have had more trouble meanwhile
        inbox = until(client, "/warehouse/inbox", "no shelf has the")
        assert "Retry all of its letters" in inbox.links
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0


def test_a_console_on_two_databases(tmp_path: Path) -> None:
    for name in ("a", "b"):
        migrate_sqlite(tmp_path / f"{name}.sqlite")
    databases = ["--database", "sqlite:///a.sqlite", "--database", "second=sqlite:///b.sqlite"]
    arguments = ("console", *databases, "--port", "0", "--role", "viewer", "--who", "vera")
    with started(*arguments, cwd=tmp_path) as (address, process), signed_in(address) as client:
        overview = Page(client.get("/"))
        assert {"a", "second"} <= set(overview.links)
        assert "vera viewer" in overview.text
        assert client.get("/a/do/pause").status_code == 403
        assert httpx.get(address).status_code == 401  # the token was used
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "database is not set"),
        (("--database", "sqlite:///a", "--role", "root"), "--role is 'root'; it must be viewer, operator, admin"),
        (("--database", "sqlite:///a", "--app", "nowhere:x"), "there is no module 'nowhere'"),
        (("--database", "sqlite:///a", "--host", "203.0.113.1", "--port", "0"), "can't be used"),
        (
            ("--database", "a=sqlite:///a", "--database", "a=sqlite:///b", "--port", "0"),
            "two databases have the name 'a'",
        ),
        (("--database", "oracle://x/y", "--port", "0"), "oracle"),
    ],
)
def test_what_can_not_be_used_is_said_in_one_line(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "postroad", "console", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=SECONDS, check=False)
    assert ended.returncode != 0
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
