"""The ledger over the MySQL protocol, read and written on the leader frontend only.

A follower lags behind, so it may return an old owner or old positions. SHOW FRONTENDS names the leader; the sink looks
it up again after a connection breaks. A leader may also step down in place, and keep its connections: each connection
asks a follower to pass queries on to the leader (wire contract 10.11). A server that cannot is asked who leads before
every statement. All threads share one connection, because one per thread would be mostly idle.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pymysql
from pymysql.err import InterfaceError, MySQLError, OperationalError

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.errors import QueryFailed, QueryRefused
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.addresses import Address
from starrocks_txn_sink.protocol.label import LedgerRequest
from starrocks_txn_sink.protocol.ledger import (
    LedgerOperation,
    create_table,
    read_result,
    statement,
)
from starrocks_txn_sink.sql.connection import connect_arguments, forward_queries

_TRANSIENT_NUMBERS = frozenset({0, 1040, 1053, 1152, 1158, 1159, 1160, 1161, 1205, 2003, 2005, 2006, 2013, 2014, 2055})
_TRANSIENT_TEXTS = ("timeout", "timed out", "not alive", "no alive", "publish", "too many", "mem_limit", "not ready")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class LeaderConnection:
    """A connection to the leader frontend; opens on first use and again after an error. Thread-safe.

    `query` raises QueryFailed if no answer arrived (the statement may have taken effect), QueryRefused if the server
    refused the statement.
    """

    def __init__(self, options: SinkOptions, connect: Callable[..., Any] = pymysql.connect) -> None:
        self._options = options
        self._connect = connect
        self._connection: Any = None
        self._address: Address | None = None
        self._forwards = False  # a frontend that does not lead passes queries on
        self._lock = threading.Lock()

    def query(self, sql: str, parameters: tuple[object, ...], deadline: Deadline) -> list[tuple[Any, ...]]:
        """Run one statement on the leader and return its rows."""
        with self._lock:
            try:
                connection = self._leader(deadline)
                self._set_timeouts(connection, deadline)
                with connection.cursor() as cursor:
                    cursor.execute(sql, parameters)
                    return list(cursor.fetchall())
            except (MySQLError, OSError) as error:
                raise self._drop_and_translate(error) from error

    def close(self) -> None:
        """Close the connection; a later `query` opens a new one."""
        with self._lock:
            self._drop()

    def _drop_and_translate(self, error: Exception) -> QueryFailed | QueryRefused:
        """Drop the connection and return the typed error: after any error, another frontend may lead."""
        self._drop()
        if _is_transient(error):
            return QueryFailed(f"StarRocks did not answer over the MySQL protocol: {_error_kind(error)}")
        return QueryRefused(
            f"StarRocks refused a statement over the MySQL protocol: {_error_kind(error)}",
            hint="Check the user's privileges, and that the database and its tables exist.",
        )

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except (MySQLError, OSError):
                return

    def _leader(self, deadline: Deadline) -> Any:
        if self._connection is not None and self._has_stepped_down():
            self._drop()
        if self._connection is None:
            self._connection = self._find_leader(deadline)
        return self._connection

    def _has_stepped_down(self) -> bool:
        """Whether the frontend of the kept connection is a follower now that would answer from its own state."""
        if self._forwards or not self._options.find_leader or self._address is None:
            return False
        return self._leader_of(self._connection, self._address) is not None

    def _find_leader(self, deadline: Deadline) -> Any:
        failure: Exception | None = None
        for address in self._options.query_addresses:
            try:
                connection = self._open(address, deadline)
            except (OperationalError, OSError) as error:
                if not _is_transient(error):
                    raise
                failure = error
                continue
            leader = self._leader_of(connection, address) if self._options.find_leader else None
            if leader is None:
                return connection
            connection.close()
            return self._open(leader, deadline)
        raise QueryFailed(f"No address of query_url accepted a connection: {_error_kind(failure)}") from failure

    def _leader_of(self, connection: Any, address: Address) -> Address | None:
        """The leader's address; None if `address` leads itself, or if there is only one frontend."""
        with connection.cursor() as cursor:
            try:
                cursor.execute("SHOW FRONTENDS")
            except (MySQLError, OSError) as error:
                raise error if _is_transient(error) else _no_leader_error(error) from error
            names = [column[0].lower() for column in cursor.description]
            frontends = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        for frontend in frontends:
            if str(frontend.get("role", "")).upper() == "LEADER" or _is_true(frontend.get("ismaster")):
                host, port = str(frontend["ip"]), int(frontend["queryport"])
                leader = self._apply_redirect_map(host, port)
                return None if _is_same_address(leader, address) or len(frontends) == 1 else leader
        return None

    def _apply_redirect_map(self, host: str, port: int) -> Address:
        target = self._options.redirect_map.get(f"{host}:{port}")
        if target is not None:
            host, _, text = target.rpartition(":")
            port = int(text)
        return Address("mysql", host, port)

    def _open(self, address: Address, deadline: Deadline) -> Any:
        left = deadline.bounded(self._options.connect_timeout, f"connecting to {address.host}:{address.port}")
        answers = min(self._options.read_timeout, deadline.remaining() + 0.001)  # for the login and SHOW FRONTENDS
        connection = self._connect(**connect_arguments(self._options, address, left, answers))
        self._address, self._forwards = address, _forward_to_leader(connection)
        return connection

    def _set_timeouts(self, connection: Any, deadline: Deadline) -> None:
        """Set the socket's timeouts to the remaining time; PyMySQL has no timeout per statement."""
        left = deadline.bounded(self._options.read_timeout, "the ledger's answer")
        connection._read_timeout = connection._write_timeout = left


def _forward_to_leader(connection: Any) -> bool:
    """Ask a frontend that does not lead to pass queries on; False if it does not know how (wire contract 10.11)."""
    try:
        forward_queries(connection)
    except (MySQLError, OSError) as error:
        if _is_transient(error):
            raise
        return False
    return True


class SqlLedger:
    """`protocol.label.Ledger` over a LeaderConnection: each question is one SQL statement."""

    def __init__(self, connection: LeaderConnection, database: str) -> None:
        self._connection = connection
        self._database = database

    def create(self, replication: int | None, deadline: Deadline) -> None:
        """Create the ledger table if it does not exist; raises QueryRefused without the privilege."""
        self._connection.query(create_table(self._database, replication), (), deadline)

    def execute(self, request: LedgerRequest, deadline: Deadline) -> Any:
        """Execute `request` (one of `protocol.ledger`)."""
        if not isinstance(request, LedgerOperation):
            raise TypeError(f"{type(request).__name__} is no request for the ledger.")
        sql, parameters = statement(self._database, request)
        return read_result(request, self._connection.query(sql, parameters, deadline))

    def close(self) -> None:
        self._connection.close()


def _no_leader_error(error: Exception) -> QueryRefused:
    return QueryRefused(
        f"SHOW FRONTENDS failed, so the leader frontend is unknown: {_error_kind(error)}",
        hint="Grant the user OPERATE ON SYSTEM, or set find_leader=False and let query_url name the leader alone.",
    )


def _is_transient(error: Exception) -> bool:
    """Whether the cause is the connection or the server's load, so that the same statement may succeed later."""
    if isinstance(error, (OSError, InterfaceError)):
        return True
    number, text = error.args[0] if error.args else 0, str(error).lower()
    return number in _TRANSIENT_NUMBERS or any(fragment in text for fragment in _TRANSIENT_TEXTS)


def _is_same_address(leader: Address, address: Address) -> bool:
    if leader.port != address.port:
        return False
    return leader.host == address.host or {leader.host, address.host} <= set(_LOOPBACK)


def _is_true(value: object) -> bool:
    return str(value).lower() in ("true", "1")


def _error_kind(error: Exception | None) -> str:
    """Type and number of the error. Never its text, which may repeat a statement with its values."""
    if error is None:
        return "no address was given"
    number = f" {error.args[0]}" if error.args and isinstance(error.args[0], int) else ""
    return f"{type(error).__name__}{number}"
