"""What a database's dialect is: its SQL, its migrations, its value conversions and its errors, in one object.

SQL is in the .sql files of the dialect's folder. A named query begins at `-- name: <name>`; the comment lines below it
say what it is for. A part of several queries begins at `-- part: <name>`, and they contain it as `{<name>}`. Values are
always bound. What stands in `{? ?}` is for sinks with a filter: such a query has a second form, with it, under the name
`<name>_filtered`. What is put into the text is the schema's name, which `checked_schema` has made sure is a plain
identifier, the parts, and the dialect's `expressions`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final

from postroad.config import DEFAULT_SCHEMA, checked_schema
from postroad.errors import InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from importlib.resources.abc import Traversable
    from uuid import UUID

    from postroad.errors import PostroadError
    from postroad.stores.admin.admin import Admin
    from postroad.stores.base import Store
    from postroad.stores.facts import FactReader
    from postroad.stores.statements import Placeholders, Statements

__all__ = ["POSITIONS", "DatabaseErrors", "Dialect", "SQLDialect"]

POSITIONS: Final = 50_000
"""Over so many positions of the log one statement walks at most for a sink with a filter: a few dozen milliseconds."""
_FILES: Final = ("queries.sql", "leases.sql", "admin.sql")
_FACTS: Final = "doctor.sql"
_NAME: Final = re.compile(r"^-- (name|part): (\w+)\n", re.MULTILINE)
_COMMENT: Final = re.compile(r"^--.*\n", re.MULTILINE)
_FOR_FILTERS: Final = re.compile(r"\{\?(.*?)\?\}", re.DOTALL)
_TABLE: Final = re.compile(r"create (?:unlogged )?table if not exists (\S+)")
_KEPT: Final = ("migrations", "installation", "locks")


class Dialect(ABC):
    """What runs statements in the user's own transaction: a database, or the memory store."""

    name: ClassVar[str]
    """As SQLAlchemy and Django call it."""
    begin_before_savepoint: ClassVar[bool] = False
    """Outside a transaction, SAVEPOINT begins one that its RELEASE commits, so drivers must begin one before."""

    @abstractmethod
    def statements(self, schema: str, placeholders: Placeholders) -> Statements:
        """Its statements for one schema, with a driver's placeholders."""


class DatabaseErrors(ABC):
    """Tells the errors of a database and its drivers apart. Each method looks at one error, not at its causes."""

    @abstractmethod
    def is_retryable(self, error: BaseException) -> bool:
        """The transaction was lost, and the same work may well succeed when it is done again."""

    @abstractmethod
    def is_transient(self, error: BaseException) -> bool:
        """The database can't be reached now, and may well be reached a little later without a change of settings."""

    def is_final(self, error: BaseException) -> bool:
        """The database can't be reached before something is changed, whatever caused this error."""
        return False

    def is_lock_timeout(self, error: BaseException) -> bool:
        """Another transaction has locked a row for longer than the statement may wait."""
        return False

    def is_aborted(self, error: BaseException) -> bool:
        """A statement has failed earlier in the transaction."""
        return False

    @abstractmethod
    def as_ours(self, error: BaseException, schema: str) -> PostroadError | None:
        """The error to raise instead: NotMigrated if a table of this schema is missing, IdTaken or NotOwner if our own
        SQL raised it. None for any other error, such as one about the user's own table.
        """


class SQLDialect(Dialect):
    """One kind of database."""

    title: ClassVar[str]
    """As its makers write it."""
    schemes: ClassVar[tuple[str, ...]]
    """What a URL of such a database begins with."""
    sqlalchemy_drivers: ClassVar[frozenset[str]]
    """What may follow the scheme, after a plus sign, in a URL of SQLAlchemy."""
    has_roles: ClassVar[bool]
    """Whether rights can be granted to roles."""
    separator: ClassVar[str]
    """What stands between the schema and the name of a table."""
    pin_statements: ClassVar[Sequence[str]] = ()
    """To be run before migration statements: from here on, names without a schema are the database's own."""
    restore_statements: ClassVar[Sequence[str]] = ()
    """To be run after migration statements: the rest of the transaction has the search_path that it had before."""
    expressions: ClassVar[Mapping[str, str]]
    """Parts of named queries. {size}: what a row of the log counts for in a page; null if it is too large to be read.
    {bytes}: no less, of PostgreSQL only; a row may be read if it is not more than `LONGEST_HEADERS`.
    {contents}: what is fetched of it. {created_us}: when it was added, as a relay on PostgreSQL reads it. {next_xid}:
    the transaction id that the server will assign next, in a transaction that has none. {last_xid}: the highest that
    there can be. {positions}: over how many positions of the log one statement walks at most for a sink with a filter.

    Characters of headers are counted, not bytes, as `StoredMessage.size` does: a relay that counted less than the
    server would take a page that was cut short for the end of the log.
    """
    sink_tables: ClassVar[Sequence[str]] = (
        "deferred", "attempts", "progress", "delivered", "holds", "pauses", "ahead", "rewound", "copies", "relays",
        "lanes", "sinks",
    )  # fmt: skip
    """The tables with rows of sinks; the query `remove_<table>` deletes those of one sink."""
    shared_facts: ClassVar[Sequence[str]] = ("schema_version",)
    """The queries that `postroad doctor` uses beside its own."""
    errors: ClassVar[DatabaseErrors]

    @cached_property
    def folder(self) -> Traversable:
        """The SQL files."""
        from importlib.resources import files  # only a process that uses a database needs it

        return files("postroad.stores") / "sql" / self.name

    # -- the text ----------------------------------------------------------------------------------------------------

    def sql_file(self, name: str, schema: str) -> str:
        """One file's text, for one schema."""
        text = (self.folder / name).read_text(encoding="utf-8")
        return text.replace("{schema}", checked_schema(schema))

    @cache  # noqa: B019 - there is one object per database, which lives as long as the process
    def queries(self, schema: str) -> dict[str, str]:
        """Every named query, for one schema."""
        parts = dict(self.expressions)
        queries: dict[str, str] = {}
        for file in _FILES:
            queries |= self._named(file, schema, parts)
        removals = {f"remove_{table}": parts["{remove}"].replace("{table}", table) for table in self.sink_tables}
        return _in_both_forms(queries) | removals

    @cache  # noqa: B019 - as above
    def fact_queries(self, schema: str) -> dict[str, str]:
        """The queries of `postroad doctor`, for one schema: those of a file of their own, and a few of all others."""
        shared = {name: sql for name, sql in self.queries(schema).items() if name in self.shared_facts}
        return shared | self._named(_FACTS, schema, dict(self.expressions))

    def _named(self, file: str, schema: str, parts: dict[str, str]) -> dict[str, str]:
        """The named queries of a file. The parts that are found in it are added to `parts`."""
        queries: dict[str, str] = {}
        _, *found = _NAME.split(self.sql_file(file, schema))
        for kind, name, text in zip(found[::3], found[1::3], found[2::3], strict=True):
            sql = _COMMENT.sub("", text).strip()
            for part, expression in parts.items():
                sql = sql.replace(part, expression)
            if kind == "name":
                queries[name] = sql
            else:
                parts[f"{{{name}}}"] = sql
        return queries

    # -- migrations --------------------------------------------------------------------------------------------------

    @property
    def migrations(self) -> dict[int, str]:
        """The numbered migrations, in order: number to file name."""
        names = sorted(each.name for each in self.folder.iterdir() if each.name[0].isdigit())
        return {int(name.split("_")[0]): name for name in names}

    def missing_migrations(self, version: int | None) -> dict[int, str]:
        """The migrations that a database at this version has not had yet: number to file name."""
        return {number: name for number, name in self.migrations.items() if number > (version or 0)}

    @abstractmethod
    def migration_script(self, schema: str = DEFAULT_SCHEMA) -> str:
        """All migrations as one script, for a person or another tool to apply."""

    def migration_statements(
        self, schema: str = DEFAULT_SCHEMA, *, after: int = 0, through: int | None = None
    ) -> list[str]:
        """The statements of the migrations after one number, through another or to the last.

        For Alembic and Django, which run them in a transaction of their own: not every driver takes a script of several
        statements.
        """
        known = self.migrations
        if through is not None and through not in known:
            raise InvalidSetting(f"through is {through!r}; the migrations that this postroad has are {list(known)}")
        wanted = [name for number, name in known.items() if after < number <= (through or max(known))]
        return [statement for name in wanted for statement in self.split(self.sql_file(name, schema))]

    def split(self, script: str) -> list[str]:
        """The statements of a script. Raises ValueError if it ends within a statement."""
        *statements, rest = self._pieces(script)
        if rest.strip():
            raise ValueError(f"a migration ends within a statement: {rest.strip()[:80]!r}")
        return statements

    @abstractmethod
    def _pieces(self, script: str) -> list[str]:
        """The statements of a script, and what is left after the last one."""

    def lock_statement(self, schema: str) -> str | None:
        """To be run before a migration, so that of two at the same time one waits; None: the database sees to it."""
        return None

    @abstractmethod
    def exists_statement(self, schema: str) -> str:
        """Returns a row if the schema has been migrated at all."""

    def version_statement(self, schema: str) -> str:
        """Returns a row with the last migration that was applied; null if none was."""
        return f"select max(version) from {checked_schema(schema)}{self.separator}migrations"  # noqa: S608 - checked

    @cache  # noqa: B019 - as above
    def tables(self, schema: str = DEFAULT_SCHEMA) -> tuple[str, ...]:
        """The names of all tables that the migrations make, each with its schema, in the order in which they do."""
        return tuple(dict.fromkeys(_TABLE.findall("\n".join(self.migration_statements(schema)))))

    def empty_statements(self, schema: str = DEFAULT_SCHEMA) -> list[str]:
        """Leave the tables as the migrations made them. Each statement returns a row for each row that it deletes."""
        emptied = [name for name in self.tables(schema) if not name.endswith(_KEPT)]
        return [f"delete from {name} returning 1" for name in emptied]  # noqa: S608 - our own names

    # -- for tests of applications -----------------------------------------------------------------------------------

    @abstractmethod
    def log_statement(self, schema: str) -> str:
        """Returns every row of the log, in order, with the types of StoredMessage but for the id, which is a text."""

    @abstractmethod
    def scheduled_statement(self, schema: str) -> str:
        """Returns every scheduled message, in the order in which they are due: as `log_statement`, with a number for
        the position, and then when it is due, in microseconds.
        """

    @abstractmethod
    def move_statements(self, schema: str, id: UUID) -> list[str]:
        """Move one scheduled message into the log, whenever it is due. Each returns rows."""

    @abstractmethod
    def writers_statement(self, schema: str, *, id: Any, table: str, where: str) -> str:
        """Returns the transactions that wrote a message and the rows of a table. Raises InvalidSetting where the
        database does not record that.
        """

    # -- the parts that need a driver --------------------------------------------------------------------------------

    @abstractmethod
    async def migrate(self, url: str, schema: str) -> list[int]:
        """Apply the missing migrations, and return their numbers."""

    @abstractmethod
    def store(self, url: str, *, schema: str, direct: str | None, connections: int) -> Store:
        """The store for this URL; it is not connected yet."""

    @abstractmethod
    def admin(self, url: str, *, schema: str, connections: int) -> Admin:
        """What an operator works with; it connects when it is entered with `async with`."""

    @abstractmethod
    def facts(self, url: str, *, schema: str, direct: str | None) -> FactReader:
        """What `postroad doctor` asks; it connects when it is entered with `async with`, and changes nothing."""


def _in_both_forms(queries: Mapping[str, str]) -> dict[str, str]:
    """A sink without a filter does not pay for filters: its statements are as if there were none."""
    plain = {name: _FOR_FILTERS.sub("", sql) for name, sql in queries.items()}
    filtered = {f"{name}_filtered": _FOR_FILTERS.sub(r"\1", sql) for name, sql in queries.items() if "{?" in sql}
    return plain | filtered
