"""What stands in two places stands the same: public names, query names, migrations, the error tree."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from collections import defaultdict
from pathlib import Path

import pytest

import postroad
from postroad import errors, events
from postroad.stores.dialects import DIALECTS, POSTGRESQL, SQLITE, SQLDialect
from postroad.stores.migrations import SCHEMA_VERSION

MODULES = [
    name for _, name, _ in pkgutil.walk_packages(postroad.__path__, "postroad.") if not name.endswith("__main__")
]


def imported_from_modules() -> dict[str, set[str]]:
    """For each module, the names that other modules of postroad import from it."""
    imported: defaultdict[str, set[str]] = defaultdict(set)
    for file in Path(postroad.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module in MODULES:
                imported[node.module].update(alias.name for alias in node.names)
    return imported


IMPORTED = imported_from_modules()


@pytest.mark.parametrize("name", MODULES)
def test_all_is_exact(name: str) -> None:
    """`__all__` has every name that another module of postroad imports, and no name that the module does not have.

    `events` needs none: its public classes are the events.
    """
    module = importlib.import_module(name)
    submodules = {each.name for each in pkgutil.iter_modules(getattr(module, "__path__", ()))}
    offered = set(getattr(module, "__all__", ()))
    if module is events:
        offered = {each for each, value in vars(events).items() if inspect.isclass(value) and not each.startswith("_")}
    assert IMPORTED.get(name, set()) - submodules <= offered
    assert {each for each in offered if not hasattr(module, each)} == set()


def test_everything_that_postroad_offers_is_there() -> None:
    for each in postroad.__all__:
        assert hasattr(postroad, each)
    offered = {
        each for each in vars(postroad) if not each.startswith("_") and not inspect.ismodule(getattr(postroad, each))
    }
    assert offered - {"annotations"} | {"__version__"} == set(postroad.__all__)


def test_the_error_tree_is_drawn_as_it_is() -> None:
    drawn = re.findall(r"(?:├──|└──) (\w+)", errors.__doc__ or "")
    real = [name for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, Exception)]
    assert sorted(drawn) == sorted(set(real) - {"PostroadError"})


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_no_two_queries_have_one_name(dialect: SQLDialect) -> None:
    written = "".join(dialect.sql_file(name, "postroad") for name in ("queries.sql", "leases.sql", "admin.sql"))
    names = re.findall(r"-- (?:name|part): (\w+)\n", written) + [f"remove_{table}" for table in dialect.sink_tables]
    assert len(names) == len(set(names))
    assert set(names) >= {name.removesuffix("_filtered") for name in dialect.queries("postroad")}


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_removing_a_sink_leaves_no_table_with_its_name(dialect: SQLDialect) -> None:
    tables = re.findall(
        rf"create table if not exists postroad{re.escape(dialect.separator)}(\w+) \((.*?)\n\)",
        dialect.migration_script("postroad"),
        re.DOTALL,
    )
    assert {name for name, columns in tables if re.search(r"^    sink ", columns, re.MULTILINE)} == set(
        dialect.sink_tables
    )


def test_databases_share_their_query_names() -> None:
    """SQLite has no snapshots, servers or restores, and takes small steps where PostgreSQL has one statement."""
    postgresql, sqlite = (
        {name.removesuffix("_filtered"): sql for name, sql in each.queries("postroad").items()}
        for each in (POSTGRESQL, SQLITE)
    )
    only_postgresql = {
        "add_many", "server_facts", "lock_for_restore", "restore", "read_large_page",
        "read_many", "read_many_apart", "settle_many",
        "read_late_page", "settle_and_note", "hold_behind", "try_to_clean", "try_to_move", "begin_nap", "end_naps",
        "wipe_marks", "writers", "server_process", "borrow_session", "dead_suspects", "mark_dead", "try_lock",
        "save_lock", "announce_relay", "lock_holder", "set_keepalives", "lock_row_holder", "table_users", "notice",
        "end_frozen_sessions",
        "has_free_lanes", "blockers", "due_by_role", "look_at_slot", "keep_slot", "lose_slot", "adopt_slot",
        "remove_replication_slots", "add_copies", "settle_copies",
    }  # fmt: skip
    only_sqlite = {
        "look_at_batch", "delete_finished", "delete_history", "find_due", "find_routed", "find_followers", "read_one",
        "cancel_scheduled", "cancel_deferred", "raise_versions", "undate_lanes", "forget_ahead",
        "forget_rewound", "note_delivered", "delete_delivered", "delete_rewound", "find_old_progress",
        "undate_progress", "data_version", "tick", "clock", "renew_leases", "list_lanes", "peers", "save_lease",
        "forget_dead_relays", "destination", "save_served_at", "remove_leases", "mark_transaction", "add_moved",
        "has_another", "add_copy", "forget_copy", "postpone_copy",
    }  # fmt: skip
    assert set(postgresql) - only_postgresql == set(sqlite) - only_sqlite
    assert all(text and "{" not in text.replace("'{", "") for text in [*postgresql.values(), *sqlite.values()])


def test_migrations_have_the_same_numbers_everywhere() -> None:
    assert list(POSTGRESQL.migrations) == list(SQLITE.migrations)
    assert max(POSTGRESQL.migrations) == SCHEMA_VERSION
    assert list(SQLITE.migrations) == sorted(SQLITE.migrations)
