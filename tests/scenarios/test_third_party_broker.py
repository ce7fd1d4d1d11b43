"""A broker that is installed as a package of its own: the folder tests/toy_broker on the path, with its entry point.

This is what CONTRIBUTING.md ("Adding a broker") promises: a module and a registration, and the broker can be published
to and consumed from, from Python and the command line, with settings, help and documentation.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tokenize
from contextlib import closing
from pathlib import Path

import pytest

import postroad
from postroad import Outbox
from postroad.stores.sqlite import migrate_sqlite

ROOT = Path(__file__).parents[2]
SOURCE = Path(postroad.__file__).parent
TOY = ROOT / "tests" / "toy_broker"

APP = """
import os
import sqlite3
from contextlib import closing, contextmanager
from dataclasses import dataclass

from postroad import Consumer, Received


@dataclass
class OrderCreated:
    order: int


@contextmanager
def begin():
    with closing(sqlite3.connect("shop.sqlite")) as connection, connection:
        yield connection


stock = Consumer(os.environ["BROKER"], name="stock", begin=begin, shelf="orders", limit=2)


@stock.on(OrderCreated)
def reserve(event: OrderCreated, tx: sqlite3.Connection, message: Received) -> None:
    tx.execute("insert into reserved values (?)", (event.order,))
    if event.order == 4:
        raise ValueError("there is no fourth")
"""

PYTHON = """
import asyncio, sys
from postroad.brokers import publisher_for
from postroad.relay import Relay
from postroad.stores import store_for
from shop import stock

async def main(url):
    store = store_for("sqlite:///shop.sqlite")
    relayed = await Relay(store, publisher_for(url, shelf="orders"), sink="python").run_until_empty()
    handled = await stock.run_until_empty()
    print(relayed.published, handled.handled, handled.dead)

asyncio.run(main(sys.argv[1]))
"""

BROKEN = "import no_such_driver"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A shop with four orders, and a package whose broker can't be imported."""
    shutil.copytree(TOY, tmp_path / "site", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "site" / "postroad_broken.py").write_text(BROKEN)
    information = tmp_path / "site" / "postroad_broken-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: postroad-broken\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[postroad.brokers]\nbroken = postroad_broken:BROKER\n")
    migrate_sqlite(tmp_path / "shop.sqlite")
    (tmp_path / "shop.py").write_text(APP)
    with closing(sqlite3.connect(tmp_path / "shop.sqlite")) as connection, connection:
        connection.execute("create table reserved (number integer)")
        for number in range(4):
            Outbox(source="/shop").add(connection, {"order": number}, type="order.created", key=number)
    return tmp_path


def program(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("POSTROAD_")}
    path = os.pathsep.join([str(folder / "site"), str(SOURCE.parent)])
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder, env=environment | {"PYTHONPATH": path, "BROKER": url(folder), "COLUMNS": "200"} | more,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def command(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return program(folder, "-m", "postroad", *arguments, **more)


def url(folder: Path) -> str:
    return f"toy://{folder}/broker"


def relay(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return command(folder, "relay", "--until-empty", "--database", "sqlite:///shop.sqlite", *arguments, **more)


def reserved(folder: Path) -> list[int]:
    with closing(sqlite3.connect(folder / "shop.sqlite")) as connection:
        return sorted(row[0] for row in connection.execute("select number from reserved"))


def shelves(folder: Path) -> dict[str, int]:
    return {each.name: len(list(each.glob("*.json"))) for each in (folder / "broker").iterdir()}


def test_from_python(folder: Path) -> None:
    done = program(folder, "-c", PYTHON, url(folder))
    assert (done.returncode, done.stdout) == (0, "4 4 0\n"), done.stderr
    assert reserved(folder) == [0, 1, 2, 3]
    assert shelves(folder) == {"orders": 0}


def test_from_the_command_line(folder: Path) -> None:
    done = relay(folder, "--to", url(folder), "--toy-shelf", "orders")
    assert (done.returncode, "to toy://" in done.stderr) == (0, True), done.stderr
    assert shelves(folder) == {"orders": 4}
    done = command(folder, "consume", "--until-empty", "--app", "shop:stock")
    assert (done.returncode, done.stdout[:9]) == (0, "4 handled"), done.stderr
    assert reserved(folder) == [0, 1, 2, 3]
    assert shelves(folder) == {"orders": 0}


def test_it_says_what_a_confirm_means(folder: Path) -> None:
    done = relay(folder, "--to", url(folder), "--toy-shelf", "orders")
    lines = [line.split(" relay default: ")[-1] for line in done.stderr.splitlines()]
    assert "a confirmed message is written to a file" in lines
    assert "WARNING  relay default: the file is not synced: it may be lost in a power failure" in done.stderr


def test_a_handler_that_kills_its_process_every_time_ends_among_the_dead_letters(folder: Path) -> None:
    """Although this broker does not know what it has delivered before."""
    killing = APP.replace("import os\n", "import os, signal\n", 1).replace(
        '        raise ValueError("there is no fourth")', "        os.kill(os.getpid(), signal.SIGKILL)"
    )
    (folder / "shop.py").write_text(killing.replace("event.order == 4", "event.order == 2"))
    relay(folder, "--to", url(folder), "--toy-shelf", "orders")
    done = command(folder, "consume", "--until-empty", "--app", "shop:stock")
    codes = [done.returncode]
    while len(codes) < 20 and codes[-1] == -signal.SIGKILL:
        done = command(folder, "consume", "--until-empty", "--app", "shop:stock")
        codes.append(done.returncode)
    assert codes == [*[-signal.SIGKILL] * 5, 1], done.stderr  # 1: there are dead letters
    assert reserved(folder) == [0, 1, 3]
    assert shelves(folder)["orders"] == 0
    (dead,) = (folder / "broker" / "orders" / "dead").iterdir()
    assert "the process ended while the handler ran, 5 times" in dead.read_text()


@pytest.mark.parametrize("place", ["file", "environment", "default"])
def test_its_settings_come_from_the_usual_places(folder: Path, place: str) -> None:
    if place == "file":
        (folder / "postroad.toml").write_text("[toy]\nshelf = 'file'\ntoken = 'geheim'\n")
    variables = {"POSTROAD_TOY_SHELF": "environment"} if place == "environment" else {}
    assert relay(folder, "--to", url(folder), **variables).returncode == 0
    assert shelves(folder) == {"main" if place == "default" else place: 4}
    shown = json.loads(command(folder, "config", "--json", **variables).stdout)["settings"]
    assert shown["toy.shelf"]["from"] == place
    assert shown["toy.token"]["value"] == ("***" if place == "file" else None)


def test_a_wrong_value_names_the_setting_and_every_way_to_set_it(folder: Path) -> None:
    done = relay(folder, "--to", url(folder), "--toy-shelf", "")
    assert done.stderr == (
        "postroad: toy.shelf is ''; it must be a text of 1 to 255 bytes, without control characters "
        "(command line; set by --toy-shelf or POSTROAD_TOY_SHELF)\n"
    )
    (folder / "postroad.toml").write_text("[toy]\nshelv = 'x'\n")
    done = relay(folder, "--to", url(folder))
    assert done.stderr == (
        "postroad: there is no setting 'toy.shelv'; did you mean 'toy.shelf'? (file postroad.toml)\n"
    )


def test_a_wrong_keyword_of_a_consumer_is_refused(folder: Path) -> None:
    (folder / "shop.py").write_text(APP.replace('shelf="orders"', 'shelv="orders"'))
    done = command(folder, "consume", "--app", "shop:stock")
    wrong = "the subscriber of the toy broker has no setting 'shelv'; did you mean 'shelf'? it has shelf, limit"
    assert (done.returncode, wrong in done.stderr) == (2, True), done.stderr


def test_its_options_have_their_help(folder: Path) -> None:
    done = command(folder, "relay", "--help-all")
    assert "--toy-shelf NAME The shelf that messages are put on. [default: (main)]" in " ".join(done.stdout.split())
    assert "--toy-token" not in done.stdout, "a secret has no option"


def test_its_documentation_is_made_of_the_declaration(folder: Path) -> None:
    make = (
        "from postroad.setting import markdown_table; from postroad_toy import BROKER;"
        "print(markdown_table(BROKER.publisher_settings.declared()), end='')"
    )
    assert program(folder, "-c", make).stdout == (
        "| name | value | default | what it does |\n"
        "|---|---|---|---|\n"
        "| `shelf` | `NAME` | `main` | The shelf that messages are put on. |\n"
        "| `token` | `TEXT` | | What the broker would ask for, if it asked. |\n"
    )


def test_an_unknown_scheme_lists_it_among_the_others(folder: Path) -> None:
    done = relay(folder, "--to", "toys:///x")
    assert "begins with 'toys'; did you mean toy://? it must look like amqp://" in done.stderr
    assert "memory://name, slot://NAME or toy:///folder" in done.stderr


def test_a_broker_that_cannot_be_imported_is_reported_when_it_is_used_and_only_then(folder: Path) -> None:
    (folder / "postroad.toml").write_text("[broken]\nanything = 5\n")
    done = relay(folder, "--to", url(folder), POSTROAD_BROKEN_THING="7")
    assert (done.returncode, "broken" in done.stderr) == (0, False), done.stderr
    done = relay(folder, "--to", "broken://host")
    assert done.returncode == 2
    assert done.stderr == (
        "postroad: to begins with broken://, and its broker can't be loaded: ModuleNotFoundError: No module named "
        "'no_such_driver' (postroad-broken: postroad_broken:BROKER) (set by --to or POSTROAD_TO)\n"
    )


@pytest.mark.parametrize(
    ("scheme", "module", "reason"),
    [
        ("broken", "BROKER = 7", "it is of type int; it must be a postroad.brokers.Broker"),
        ("broken", TOY / "postroad_toy.py", "its name is 'toy', which another broker has"),
        ("broken", "NAMED lanes", "its name is 'lanes'; it must be lower-case letters and digits"),
        ("broken", "NAMED log", "no general setting's name may begin with it"),
        ("broken", "NAMED Rab-bit", "it must be lower-case letters and digits"),
        ("broken", "NAMED rabbitmq", "its name is 'rabbitmq', which another broker has"),
        ("toy", "BROKER = 7", "several packages register it (postroad-broken: "),
    ],
)
def test_a_package_that_is_wrong(folder: Path, scheme: str, module: str | Path, reason: str) -> None:
    text = module.read_text() if isinstance(module, Path) else module
    text = re.sub("NAMED (.*)", r"from postroad.brokers import Broker\nBROKER = Broker(name='\1', title='x')", text)
    (folder / "site" / "postroad_broken.py").write_text(text)
    entries = folder / "site" / "postroad_broken-1.0.dist-info" / "entry_points.txt"
    entries.write_text(f"[postroad.brokers]\n{scheme} = postroad_broken:BROKER\n")
    done = relay(folder, "--to", f"{scheme}://x")
    assert (done.returncode, reason in done.stderr) == (2, True), done.stderr
    assert relay(folder, "--to", "null://").returncode == 0, "the other brokers work"


def test_a_package_can_not_replace_a_broker_of_postroads_own(folder: Path) -> None:
    entries = folder / "site" / "postroad_broken-1.0.dist-info" / "entry_points.txt"
    entries.write_text("[postroad.brokers]\nnull = postroad_toy:BROKER\n")
    assert "to null://" in relay(folder, "--to", "null://").stderr


# -- what a new broker touches ---------------------------------------------------------------------------------------


def test_no_module_outside_brokers_names_rabbitmq() -> None:
    """A broker that is added touches its own folder, and no name elsewhere."""
    for file in SOURCE.rglob("*.py"):
        if SOURCE / "brokers" in file.parents and file.name != "registry.py":
            continue
        tokens = tokenize.generate_tokens(io.StringIO(file.read_text(encoding="utf-8")).readline)
        names = {token.string for token in tokens if token.type == tokenize.NAME}
        assert not {name for name in names if re.search("rabbit|amqp", name, re.IGNORECASE)}, file


def test_contributing_lists_what_a_broker_touches() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = page.partition("\n## Adding a broker\n")[2].partition("\n## ")[0]
    named = re.findall(r"`((?:src|tests|docs)/[\w./]+)`", section.replace("NAME", "rabbitmq"))
    assert {"src/postroad/brokers/registry.py", "tests/toy_broker/postroad_toy.py"} <= set(named)
    assert [path for path in named if not (ROOT / path).exists()] == ["src/postroad/brokers/rabbitmq.py"], "a folder"
    registered = (TOY / "postroad_toy-1.0.dist-info" / "entry_points.txt").read_text()
    for line in registered.splitlines():
        assert f"`{line.strip('[]')}`" in section
    files = [path.relative_to(TOY) for path in TOY.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    information = "postroad_toy-1.0.dist-info"
    assert sorted(map(str, files)) == [f"{information}/METADATA", f"{information}/entry_points.txt", "postroad_toy.py"]
