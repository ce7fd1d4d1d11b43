"""Functions and operators that a hostile role puts where a careless search_path finds them.

A trap notes in public.caught which role it has run as, and tries to make its author a superuser.
"""

from __future__ import annotations

from typing import Final

from tests.security.neighbours import Neighbours

__all__ = ["caught", "set_traps"]

# PostgreSQL's own functions take regclass and bigint: an untyped literal fits these better.
_FUNCTIONS: Final = {
    "setval(text, integer)": "bigint",
    "setval(text, bigint)": "bigint",
    "pg_sequence_last_value(text)": "bigint",
    "make_interval(secs double precision)": "interval",
    "make_interval(mins integer)": "interval",
    "concat(smallint, text, smallint)": "text",
    "format(text, xid8)": "text",
}
# There are no operators of PostgreSQL's own that take exactly these.
_OPERATORS: Final = [
    ("*", "bigint", "interval", "interval"), ("*", "interval", "bigint", "interval"),
    ("*", "integer", "interval", "interval"), ("||", "text", "integer", "text"), ("-", "bigint", "numeric", "bigint"),
    ("=", "smallint", "numeric", "boolean"), ("=", "oid", "regclass", "boolean"),
]  # fmt: skip

_BODY: Final = """
language plpgsql as $$
begin
    insert into public.caught values (current_user, '{trap}');
    begin
        alter role {author} superuser;
    exception when others then null;
    end;
    return null;
end
$$;
"""


def set_traps(neighbours: Neighbours) -> None:
    """As `stranger`, who may create things in `public`, as every role may by default up to PostgreSQL 14."""
    author = neighbours.name("stranger")
    neighbours.execute("postgres", "grant create, usage on schema public to public")
    traps = "create table public.caught (who text, trap text); grant insert, select on public.caught to public;"
    for signature, result in _FUNCTIONS.items():
        traps += f"create function public.{signature} returns {result}" + _BODY.format(trap=signature, author=author)
    for number, (operator, left, right, result) in enumerate(_OPERATORS):
        name = f"trap_{number}"
        trap = f"{left} {operator} {right}"
        traps += f"create function public.{name}({left}, {right}) returns {result}"
        traps += _BODY.format(trap=trap, author=author)
        traps += f"create operator public.{operator} (leftarg = {left}, rightarg = {right}, function = public.{name});"
    neighbours.execute("stranger", traps)


def caught(neighbours: Neighbours) -> list[str]:
    """Which traps have run, as whom; and whether their author is a superuser by now."""
    found = neighbours.execute("postgres", "select distinct trap || ' as ' || who from public.caught order by 1")
    is_superuser = neighbours.execute(
        "postgres", f"select 'superuser' from pg_roles where rolsuper and rolname = '{neighbours.name('stranger')}'"
    )
    return [*found.splitlines(), *is_superuser.splitlines()]
