"""What the catalog says about our functions, triggers and views: where their names lead, and who may use them."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Final

import pytest

from postroad.stores.dialects import POSTGRESQL
from tests.security.neighbours import Neighbours

PINNED: Final = "{search_path=pg_catalog, pg_temp}"
INLINED: Final = {"passed", "slot_of", "takes"}
"""PostgreSQL inlines only functions without SET; in these every name is written in full."""

ON_THE_USERS_CONNECTION: Final = [
    "add", "add_many", "add_later", "cancel", "first_time", "first_times", "open_inbox",
    "same_transaction", "undo_first_times",
    "begin_attempt", "end_attempt", "fail_attempt", "note_dead", "forget_processed", "forget_attempts",
    "consumer_heartbeat", "consumer_ended", "forget_consumers",
]  # fmt: skip
BEFORE_THE_PATH_IS_SET: Final = ["server_process", "borrow_session", "table_users"]

_TEXT: Final = re.compile(r"'(?:[^']|'')*'")
_CALL: Final = re.compile(r"([\w.{}]+)\s*\(")
# Words of SQL that a parenthesis may follow, and functions that are part of its grammar.
_WORDS: Final = {
    "operator", "and", "or", "not", "in", "as", "exists", "values", "coalesce", "array", "any", "select", "from",
    "where", "case", "when", "then", "filter", "over", "greatest", "least", "nullif", "conflict", "materialized", "set",
    "into",
}  # fmt: skip
# With several arguments this name alone means pg_catalog's, whatever the path; PostgreSQL knows no longer form of it.
_WORDS_IN_FROM: Final = {"unnest"}
_REGCLASS: Final = re.compile(r"\b(setval|nextval|currval|pg_sequence_last_value)\(\s*'[^']*'(?!::)")


def foreign_calls(sql: str) -> list[str]:
    """The functions that are called without their schema."""
    bare = re.sub(r"--.*", "", _TEXT.sub("''", sql))
    bare = re.sub(r"\b(insert\s+into|as|with ordinality as)\s+[\w.{}]+(\s+as\s+\w+)?\s*\(", "as (", bare)
    return [
        name
        for name in _CALL.findall(bare)
        if "." not in name and name.lower() not in _WORDS | _WORDS_IN_FROM and not name.isdigit()
    ]


def operators_without_schema(sql: str) -> list[str]:
    bare = re.sub(r"operator\(pg_catalog\.[^)]+\)", "", _TEXT.sub("''", sql)).replace("::", "")
    return re.findall(r"[-+*/<>=~!@#%^&|?]+", bare)


def test_every_function_looks_names_up_in_pg_catalog_alone(neighbours: Neighbours) -> None:
    ours = "pronamespace = 'postroad'::regnamespace"
    rows = neighbours.execute("owner", f"select proname, coalesce(proconfig::text, '') from pg_proc where {ours}")
    found = dict(row.split("|") for row in rows.splitlines())
    assert len(found) >= 10
    pinned = {name for name, config in found.items() if PINNED.strip("{}") in config.replace('"', "")}
    assert set(found) - pinned == INLINED
    for name in INLINED:
        body = neighbours.execute("owner", f"select prosrc from pg_proc where {ours} and proname = '{name}'")
        assert foreign_calls(body) == [], name
        assert operators_without_schema(body) == [], name


def test_no_function_is_executable_by_everybody(neighbours: Neighbours) -> None:
    """PostgreSQL grants that by default."""
    everybodys = """
        select p.oid::regprocedure from pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) acl
         where p.pronamespace = 'postroad'::regnamespace and acl.grantee = 0"""
    assert neighbours.execute("owner", everybodys).split() == []


def test_nothing_of_ours_depends_on_another_schema(neighbours: Neighbours) -> None:
    """Views, triggers, defaults and checks keep the functions and operators that their names led to."""
    foreign = """
        with ours as (
            select 'pg_proc'::regclass as class, oid from pg_proc where pronamespace = 'postroad'::regnamespace
            union all select 'pg_class'::regclass, oid from pg_class where relnamespace = 'postroad'::regnamespace
            union all select 'pg_rewrite'::regclass, r.oid from pg_rewrite r join pg_class c on c.oid = r.ev_class
                       where c.relnamespace = 'postroad'::regnamespace
            union all select 'pg_trigger'::regclass, t.oid from pg_trigger t join pg_class c on c.oid = t.tgrelid
                       where c.relnamespace = 'postroad'::regnamespace
            union all select 'pg_attrdef'::regclass, a.oid from pg_attrdef a join pg_class c on c.oid = a.adrelid
                       where c.relnamespace = 'postroad'::regnamespace
            union all select 'pg_constraint'::regclass, oid from pg_constraint
                       where connamespace = 'postroad'::regnamespace)
        select pg_describe_object(d.classid, d.objid, 0), pg_describe_object(d.refclassid, d.refobjid, 0)
          from pg_depend d join ours o on o.class = d.classid and o.oid = d.objid
          left join pg_proc f on d.refclassid = 'pg_proc'::regclass and f.oid = d.refobjid
          left join pg_operator p on d.refclassid = 'pg_operator'::regclass and p.oid = d.refobjid
         where coalesce(f.pronamespace, p.oprnamespace) <> 'postroad'::regnamespace"""
    assert neighbours.execute("owner", foreign) == ""


def test_no_function_that_takes_a_table_or_sequence_is_given_an_untyped_literal(neighbours: Neighbours) -> None:
    """A function of another role that takes text would fit such a literal better."""
    for name in (*POSTGRESQL.migrations.values(), "queries.sql", "leases.sql", "admin.sql"):
        text = (files("postroad.stores") / "sql" / "postgresql" / name).read_text(encoding="utf-8")
        assert _REGCLASS.findall(text) == [], name


@pytest.mark.parametrize("query", [*ON_THE_USERS_CONNECTION, *BEFORE_THE_PATH_IS_SET])
def test_a_query_on_a_connection_with_any_path_says_where_its_functions_are(query: str) -> None:
    assert foreign_calls(POSTGRESQL.queries("postroad")[query]) == []
