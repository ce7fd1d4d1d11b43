"""The command line, as its users meet it: real processes, their output and their exit codes."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
import typer
from typer.testing import CliRunner

from postroad import InvalidSetting, Outbox
from postroad.brokers.local import LocalPublisher
from postroad.config import RelaySettings
from postroad.ops.cli import app
from postroad.ops.process import Outcome, run_relay
from postroad.ops.terminal import Command, run
from postroad.relay import Relay, Summary
from postroad.safe_text import has_password, without_passwords
from postroad.stores.dialects import POSTGRESQL, SQLITE
from postroad.stores.grants import grants_script
from postroad.stores.memory import MemoryStore
from postroad.stores.sqlite import SQLiteStore, migrate_sqlite

if TYPE_CHECKING:
    from pathlib import Path

    from postroad import StoredMessage

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("POSTROAD_")}
SECRET = "geheim"
APPLIED = "".join(f"applied {name.removesuffix('.sql')}\n" for name in SQLITE.migrations.values())


def postroad(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "postroad", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=ENVIRONMENT | (environment or {}),
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "shop.sqlite"


@pytest.fixture
def url(file: Path) -> str:
    return f"sqlite:///{file}"


def add(file: Path, messages: int) -> None:
    outbox = Outbox(source="/shop")
    with closing(sqlite3.connect(file)) as connection, connection:
        for number in range(messages):
            outbox.add(connection, {"number": number}, type="order.placed", key=f"customer-{number % 7}")


# -- migrate ---------------------------------------------------------------------------------------------------------


def test_migrate_says_what_it_applied_and_then_that_nothing_is_left_to_do(url: str) -> None:
    first, second = postroad("migrate", "--database", url), postroad("migrate", "--database", url)
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout == f"{APPLIED}schema 'postroad' is ready\n"
    assert (second.returncode, second.stdout) == (0, "schema 'postroad' is already up to date\n")


@pytest.mark.parametrize(
    ("change", "missing", "commands"),
    [
        ("alter table postroad_relays rename column heartbeats to beats", "heartbeats", ["migrate"]),
        ("alter table postroad_installation rename to meta", "postroad_installation", ["migrate", "status"]),
    ],
)
def test_a_schema_of_another_build_gets_one_answer(
    file: Path, url: str, change: str, missing: str, commands: list[str]
) -> None:
    migrate_sqlite(file)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(change)
    for command in commands:
        done = postroad(command, "--database", url)
        assert (done.returncode, done.stdout) == (1, "")
        assert "is not as this postroad creates it at version 1: " in done.stderr
        assert missing in done.stderr
        assert "drop the schema" in done.stderr


def test_migrate_refuses_a_schema_that_asks_for_a_newer_client(file: Path, url: str) -> None:
    migrate_sqlite(file)
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("insert into postroad_migrations (version) values (15)")
        connection.execute("update postroad_installation set min_client = 10")
    done = postroad("migrate", "--database", url)
    assert (done.returncode, done.stdout) == (1, "")
    assert "is at version 15; it asks for a client of version 10 and this one knows 1" in done.stderr


def test_sql_is_printed_as_it_is_and_nothing_is_changed(file: Path, url: str) -> None:
    done = postroad("migrate", "--database", url, "--schema", "parcels", "--sql")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == SQLITE.migration_script("parcels")
    assert not file.exists()


def test_the_dialect_of_the_sql_is_that_of_the_url() -> None:
    done = postroad("migrate", "--database", "postgresql://nobody@nowhere.invalid/nothing", "--sql")
    assert done.stdout == POSTGRESQL.migration_script()


def test_the_printed_sql_makes_a_schema_that_a_relay_accepts(file: Path, url: str) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(postroad("migrate", "--database", url, "--sql").stdout)
    assert postroad("status", "--database", url).returncode == 0


def test_grants_are_printed_for_postgresql() -> None:
    done = postroad("migrate", "--database", "postgresql://nobody@nowhere.invalid/nothing", "--grants", "shop-app")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == grants_script("shop-app")


def test_an_sqlite_file_has_no_grants(file: Path, url: str) -> None:
    done = postroad("migrate", "--database", url, "--grants", "shop")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "postroad: grants is for a database with roles, such as PostgreSQL; SQLite has none\n"
    assert not file.exists()


def test_a_wrong_schema_leaves_no_file_behind(file: Path, url: str) -> None:
    done = postroad("migrate", "--database", url, "--schema", "Post Road")
    assert done.returncode == 2
    assert done.stderr.startswith("postroad: schema is 'Post Road'; it must be")
    assert not file.exists()


# -- relay and status ------------------------------------------------------------------------------------------------


def test_from_an_empty_file_to_everything_carried(file: Path, url: str) -> None:
    environment = {"POSTROAD_DATABASE": url, "POSTROAD_TO": "null://"}
    assert postroad("migrate", environment=environment).returncode == 0
    add(file, 20)

    before = postroad("status", environment=environment)
    assert (before.returncode, "no sink yet" in before.stdout) == (0, True)

    relay = postroad("relay", "--until-empty", "--lanes", "2", "--sink", "audit", environment=environment)
    assert relay.returncode == 0
    assert relay.stdout.startswith("20 published in ")
    assert "INFO     relay audit: took 2 lanes" in relay.stderr

    add(file, 3)
    report = json.loads(postroad("status", "--json", environment=environment).stdout)
    (sink,) = report["sinks"]
    assert (sink["sink"], [lane["lane"] for lane in sink["lanes"]]) == ("audit", [0, 1])
    assert all(lane["owner"] is None and lane["position"] == 20 for lane in sink["lanes"])
    assert (report["totals"]["sinks"], report["totals"]["lanes"], report["totals"]["pending"]) == (1, 2, 3)
    assert report["totals"]["lag_seconds"] > 0

    again = postroad("relay", "--until-empty", "--sink", "audit", "--log-level", "ERROR", environment=environment)
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout.startswith("3 published in ")
    report = json.loads(postroad("status", "--json", environment=environment).stdout)
    assert [lane["pending"]["number"] for lane in report["sinks"][0]["lanes"]] == [0, 0]
    assert report["totals"]["published_last_hour"] == 23

    table = postroad("status", environment=environment).stdout
    assert "\x1b" not in table
    for words in ("sink", "pending", "lag", "oldest unsent", "failing", "dead", "last hour", "audit", "23"):
        assert words in table
    table = postroad("status", "--by-lane", environment=environment).stdout
    for words in ("lane", "position", "owner", "audit"):
        assert words in table


def test_status_of_a_database_without_a_sink_is_json_too(file: Path, url: str) -> None:
    migrate_sqlite(file)
    report = json.loads(postroad("status", "--database", url, "--json").stdout)
    assert report["sinks"] == []
    assert set(report["totals"].values()) == {0, True}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_relay_and_that_is_no_error(file: Path, url: str, number: signal.Signals) -> None:
    migrate_sqlite(file)
    add(file, 5)
    command = [sys.executable, "-m", "postroad", "relay", "--database", url, "--to", "null://"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as relay:
        assert relay.stderr is not None
        assert any("took 4 lanes" in line for line in iter(relay.stderr.readline, ""))
        relay.send_signal(number)
        out, err = relay.communicate(timeout=60)
    assert relay.returncode == 0
    assert "INFO     stopping: " in err
    assert " published in " in out


RELAY_WHOSE_BROKER_NEVER_CONFIRMS = """
import asyncio, sys
from postroad.brokers.local import LocalPublisher
from postroad.config import RelaySettings
from postroad.ops.process import run_relay
from postroad.ops.logs import log_to_stderr
from postroad.relay import Relay
from postroad.stores.sqlite import SQLiteStore

async def never(message):
    sys.stdout.write("asked\\n")
    sys.stdout.flush()
    await asyncio.Event().wait()

log_to_stderr("info")
relay = Relay(SQLiteStore(sys.argv[1]), LocalPublisher(never), settings=RelaySettings(grace="1h"))
asyncio.run(run_relay(relay))
"""


def test_a_second_signal_ends_the_relay_at_once(file: Path) -> None:
    migrate_sqlite(file)
    add(file, 1)
    command = [sys.executable, "-c", RELAY_WHOSE_BROKER_NEVER_CONFIRMS, str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as relay:
        assert relay.stdout is not None
        assert relay.stderr is not None
        assert relay.stdout.readline() == "asked\n"
        relay.send_signal(signal.SIGTERM)
        assert any("a second signal ends it at once" in line for line in iter(relay.stderr.readline, ""))
        assert relay.poll() is None  # it waits for the confirm
        relay.send_signal(signal.SIGTERM)
        assert relay.wait(timeout=60) == -signal.SIGTERM


async def test_until_empty_fails_when_a_message_was_refused(file: Path) -> None:
    migrate_sqlite(file)
    add(file, 10)

    async def picky(message: StoredMessage) -> None:
        if message.position == 4:
            raise ValueError("no fours")

    before = signal.getsignal(signal.SIGTERM)
    outcome = await run_relay(Relay(SQLiteStore(file), LocalPublisher(picky)), until_empty=True)
    assert (outcome.summary.published, outcome.summary.refused) == (9, 1)
    assert outcome.exit_code == 1
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("refused", "lost", "stopped", "until_empty", "code"),
    [
        (0, 0, True, False, 0),  # the usual end
        (0, 0, False, True, 0),
        (1, 0, True, False, 0),  # it was logged while it ran, and stopping it is no error
        (1, 0, False, False, 0),
        (1, 0, False, True, 1),
        (1, 0, True, True, 1),
        (0, 4, False, False, 0),  # another relay has them all
        (0, 1, False, True, 1),  # it is not known whether all was delivered
    ],
)
def test_the_exit_code_of_a_relay(refused: int, lost: int, stopped: bool, until_empty: bool, code: int) -> None:
    summary = Summary(0, 0, 0.0, refused, 0, lost)
    assert Outcome(summary, stopped, until_empty).exit_code == code


def test_what_a_relay_prints_at_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    from postroad.ops.commands.relay import _end

    with pytest.raises(typer.Exit) as end:
        _end([str(Summary(3, 1, 0.5, 2, 1, 0)), "b: 4"], 1)
    assert end.value.exit_code == 1
    assert capsys.readouterr().out == "3 published, 2 attempts failed, 1 dead in 0.50 s (6/s)\nb: 4\n"


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "arguments", "code", "words"),
    [
        (f"DATABASE=mysql://me:{SECRET}@host/shop", ["status"], 2, "database is a URL that begins with 'mysql'"),
        (f"DATABASE=postgresql://me:gehe/{SECRET}@host/shop", ["status"], 2, "percent-encoded"),
        (f"DATABASE=sqlite://me:{SECRET}@host/shop", ["status"], 2, "names no file"),
        (
            f"DATABASE=postgresql://me:{SECRET}@127.0.0.1:1/shop",
            ["status"],
            1,
            "PostgreSQL at 127.0.0.1:1 can't be reached",
        ),
        (f"DATABASE={SECRET}", ["status"], 2, "database is wrong (it is not shown because it may be secret); it must"),
        (
            f"TO=pigeon://me:{SECRET}@roof",
            ["relay", "--database", "sqlite:///{file}"],
            2,
            "must look like amqp://user@host/vhost, am",
        ),
        (f"TO=amqp://me:{SECRET}@", ["relay", "--database", "sqlite:///{file}"], 2, "names no host"),
        (
            f"RABBITMQ_PASSWORD={SECRET}",
            ["relay", "--database", "sqlite:///{file}"],
            2,
            "to is not set; give it as --to",
        ),
        ("TO=null://", ["relay", "--database", "sqlite:///{file}"], 1, "there is no file"),
        ("TO=null://", ["relay", "--database", "sqlite:///{file}", "--lanes", "0"], 2, "lanes is 0; it must be"),
        ("TO=null://", ["relay", "--database", "sqlite:///{file}", "--grace", "5"], 2, "grace is '5'; it must be"),
        ("TO=null://", ["relay", "--database", "sqlite:///{file}", "--sink", ""], 2, "sink is ''"),
        ("TO=null://", ["status", "--database", "sqlite:///{file}"], 1, "there is no file"),
        ("TO=null://", ["migrate", "--database", "sqlite:///{file}/below"], 1, "unable to open database file"),
        ("TO=null://", ["status"], 2, "database is not set; give it as --database URL, as POSTROAD_DATABASE, or in"),
        (
            "TOO=null://",
            ["status"],
            2,
            "there is no setting for the variable POSTROAD_TOO; did you mean 'POSTROAD_TO'?",
        ),
        (
            "LANES=many",
            ["status"],
            2,
            "lanes is 'many'; it must be a whole number from 1 to 64 (environment POSTROAD_L",
        ),
        ("CONFIG=/nowhere/x.toml", ["status"], 2, "config is '/nowhere/x.toml', which cannot be read: No such file"),
        ("TO=null://", ["fly"], 2, "No such command 'fly'; see: postroad --help"),
        ("TO=null://", ["status", "--quick"], 2, "No such option: --quick; see: postroad status --help"),
        (
            "TO=null://",
            ["status", f"amqp://me:{SECRET}@roof"],
            2,
            "(amqp://me:***@roof); see: postroad status",
        ),
        ("TO=null://", ["demo", "--orders", "few"], 2, "Invalid value for '--orders'"),
    ],
)
def test_an_error_is_one_line_that_says_what_is_wrong(
    file: Path, variable: str, arguments: list[str], code: int, words: str
) -> None:
    name, _, value = variable.partition("=")
    given = [argument.replace("{file}", str(file)) for argument in arguments]
    done = postroad(*given, environment={f"POSTROAD_{name}": value})
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("postroad: ")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr
    assert SECRET not in done.stderr
    assert not file.exists()


@pytest.mark.parametrize("command", [["status"], ["relay", "--to", "null://"]])
def test_a_database_that_was_not_migrated_says_what_to_run(file: Path, url: str, command: list[str]) -> None:
    file.touch()
    done = postroad(*command, "--database", url)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert "run: postroad migrate" in done.stderr


def test_without_a_command_the_help_is_shown_once() -> None:
    done = postroad()
    assert (done.returncode, done.stderr) == (2, "")
    assert done.stdout.count("Usage: postroad") == 1


def test_debug_shows_the_traceback_and_exits_alike(url: str) -> None:
    asked = postroad("--debug", "status", "--database", url)
    by_environment = postroad("status", "--database", url, environment={"POSTROAD_DEBUG": "1"})
    for done in (asked, by_environment):
        assert done.returncode == 1
        assert "Traceback" in done.stderr
        assert done.stderr.splitlines()[-1].startswith("postroad: ")


def failing_app(error: Exception) -> typer.Typer:
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.callback()
    def options(*, debug: bool = False) -> None:
        """As the real one."""

    @app.command(cls=Command)
    def fail() -> None:
        raise error

    return app


def test_an_unexpected_error_is_one_line_too() -> None:
    result = CliRunner().invoke(failing_app(KeyError(f"postgresql://me:{SECRET}@host\nand more")), ["fail"])
    assert result.exit_code == 1
    assert result.stderr == (
        "postroad: unexpected KeyError: 'postgresql://me:***@host\\nand more'; "
        "set POSTROAD_DEBUG=1 or use postroad --debug for the traceback\n"
    )


def test_an_error_of_a_lane_comes_in_a_group_and_is_shown_as_itself() -> None:
    group = ExceptionGroup("lanes", [ExceptionGroup("lane", [InvalidSetting("lanes is wrong")])])
    result = CliRunner().invoke(failing_app(group), ["fail"])
    assert (result.exit_code, result.stderr) == (2, "postroad: lanes is wrong\n")


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_without_the_extra_the_command_line_says_how_to_get_it(package: str) -> None:
    program = f"import sys; sys.modules[{package!r}] = None; from postroad.ops import main; main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"the command line needs {package}; install it with: pip install 'postroad[cli]'\n"


def test_the_version() -> None:
    import postroad as package

    done = postroad("--version")
    assert (done.returncode, done.stdout) == (0, f"postroad {package.__version__}\n")


# -- passwords -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("can't reach amqp://me:geheim@host/x now", "can't reach amqp://me:***@host/x now"),
        ("'postgresql://me:ge@heim@host'", "'postgresql://me:***@host'"),
        ("postgresql://host/x?user=me&password=geheim&ssl=on", "postgresql://host/x?user=me&password=***"),
        ("postgresql://me@work:geheim@host/x", "postgresql://me:***@host/x"),
        ("postgresql://host:5432/x?user=me@work", "postgresql://host:5432/x?user=me@work"),
        ("sqlite:////a/b@c.db", "sqlite:////a/b@c.db"),
        ("host=x password='ge heim' user=me", "host=x password=*** user=me"),
        ("postgresql://me@host:5432/x", "postgresql://me@host:5432/x"),
        ("sqlite:///a/b and 10:30 me@host", "sqlite:///a/b and 10:30 me@host"),
    ],
)
def test_passwords_become_stars(text: str, shown: str) -> None:
    assert without_passwords(text) == shown


@pytest.mark.parametrize(
    ("url", "has"),
    [
        ("amqp://me:geheim@host/x", True),
        ("postgresql://host/x?password=geheim", True),
        ("postgresql://me@host:5432/x", False),
        ("null://", False),
    ],
)
def test_a_url_has_a_password_or_none(url: str, has: bool) -> None:
    assert has_password(url) == has


async def test_a_relay_of_the_memory_store_can_be_carried_too() -> None:
    outcome = await run_relay(
        Relay(MemoryStore(), LocalPublisher(_take), settings=RelaySettings(lanes=1)), until_empty=True
    )
    assert (outcome.exit_code, outcome.stopped) == (0, False)


async def _take(message: StoredMessage) -> None:
    """Take it."""


def test_a_relay_does_not_publish_into_its_own_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    database = f"sqlite:///{tmp_path / 'shop.sqlite'}"
    assert run(app, ["migrate", "--database", database]) == 0
    assert run(app, ["relay", "--until-empty", "--database", database, "--to", "memory://orders"]) == 2
    assert "to is memory://orders, whose queues end with this process" in capsys.readouterr().err
