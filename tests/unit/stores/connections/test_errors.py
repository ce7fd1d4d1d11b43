"""Which errors of a database that can't be reached are waited for; the scenarios try servers' own."""

from __future__ import annotations

import socket
import sqlite3
import ssl
from typing import Any

import asyncpg
import psycopg
import psycopg_pool
import pytest
import sqlalchemy.exc

from postroad.stores.connections.errors import is_transient

CONNECTION = 'connection failed: connection to server at "127.0.0.1", port 5432 failed: '
WAITED_FOR = [
    ConnectionRefusedError(111, "Connection refused"),
    OSError("Multiple exceptions: [Errno 111] ..., [Errno 111] ..."),
    FileNotFoundError(2, "No such file or directory"),  # the socket of a server that is not there yet
    TimeoutError(),
    socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
    asyncpg.CannotConnectNowError("the database system is starting up"),
    asyncpg.TooManyConnectionsError("sorry, too many clients already"),
    asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation"),
    psycopg.OperationalError(f"{CONNECTION}Connection refused"),
    psycopg.OperationalError(f"{CONNECTION}FATAL:  the database system is starting up"),
    psycopg.OperationalError("[Errno -3] Temporary failure in name resolution"),
    psycopg.errors.ConnectionTimeout("connection timeout expired"),
    psycopg.OperationalError("the connection is lost"),
    psycopg.OperationalError("the connection is closed"),
    asyncpg.InterfaceError("cannot perform operation: connection is closed"),
    psycopg.OperationalError(f"{CONNECTION}FATAL:  sorry, too many clients already"),
    psycopg.OperationalError(f"{CONNECTION}FATAL:  remaining connection slots are reserved for roles with SUPERUSER"),
    psycopg.OperationalError(f'{CONNECTION}FATAL:  too many connections for database "shop"'),
    psycopg_pool.PoolTimeout("couldn't get a connection after 30.00 sec"),
    sqlalchemy.exc.TimeoutError("QueuePool limit of size 5 overflow 10 reached, connection timed out, timeout 30.00"),
    sqlite3.OperationalError("database is locked"),
]
NOT_WAITED_FOR = [
    socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
    PermissionError(13, "Permission denied"),
    ssl.SSLCertVerificationError("certificate verify failed"),
    ConnectionError('PostgreSQL server at "127.0.0.1:5432" rejected SSL upgrade'),
    psycopg.OperationalError(f"{CONNECTION}server does not support SSL, but SSL was required"),
    asyncpg.InvalidPasswordError('password authentication failed for user "me"'),
    asyncpg.InvalidAuthorizationSpecificationError('no pg_hba.conf entry for host "127.0.0.1"'),
    asyncpg.InvalidCatalogNameError('database "shop" does not exist'),
    asyncpg.InsufficientPrivilegeError("permission denied for table outbox"),
    asyncpg.InterfaceError("cannot perform operation: another operation is in progress"),
    asyncpg.UndefinedTableError('relation "postroad.outbox" does not exist'),
    psycopg.OperationalError(f'{CONNECTION}FATAL:  password authentication failed for user "me"'),
    psycopg.OperationalError(f'{CONNECTION}FATAL:  database "shop" does not exist'),
    psycopg.OperationalError(f"{CONNECTION}fe_sendauth: no password supplied"),
    psycopg.OperationalError(  # of several addresses, one answers
        f'{CONNECTION}FATAL:  database "shop" does not exist\nAll failures were:\n- {CONNECTION}Connection refused'
    ),
    psycopg.OperationalError("[Errno -2] Name or service not known"),
    psycopg.errors.UndefinedTable('relation "postroad.outbox" does not exist'),
    sqlite3.OperationalError("unable to open database file"),
    ValueError("of the user's own"),
]


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize(
    ("error", "transient"), [*((each, True) for each in WAITED_FOR), *((each, False) for each in NOT_WAITED_FOR)]
)
def test_which_errors_are_waited_for(error: Exception, transient: bool, wrapped: bool) -> None:
    assert is_transient(in_sqlalchemy(error) if wrapped else error) == transient


def in_sqlalchemy(error: Any) -> Exception:
    try:
        raise sqlalchemy.exc.DBAPIError("select 1", (), error) from error
    except sqlalchemy.exc.DBAPIError as outer:
        return outer


def test_settings_that_asyncpg_cannot_use_are_final_though_a_missing_file_is_their_context() -> None:
    error = asyncpg.exceptions.ClientConfigurationError('root certificate file "/nope" does not exist')
    error.__context__ = FileNotFoundError(2, "No such file or directory")
    assert not is_transient(error)


def test_a_refused_login_is_final_though_another_address_could_not_be_reached() -> None:
    error = psycopg.OperationalError(f'{CONNECTION}FATAL:  password authentication failed for user "me"')
    error.__context__ = psycopg.OperationalError(f"{CONNECTION}Connection refused")
    assert not is_transient(error)
