"""Connections to the query ports: any frontend for the tools, the leader for the ledger.

**Any frontend** (`SqlConnection`): rows with column names, errors with the server's text. Queries that decide about
commits do not use it, because an older server's follower may return old rows.

**The leader** (`LeaderConnection`, and `SqlLedger` over it). A follower lags behind, so it may return an old owner or
old positions. SHOW FRONTENDS names the leader; the sink looks it up again after a connection breaks. A leader may also
step down in place and keep its connections: each connection has queries passed on to the leader (wire contract 10.11),
and a server that cannot do so is asked who leads before every statement. All threads share one connection, because one
per thread would be mostly idle.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.errors import QueryFailed, QueryRefused, RedirectRefused, StarRocksSinkError
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.addresses import HOST_HINT, Address
from starrocks_txn_sink.protocol.label import LedgerRequest
from starrocks_txn_sink.protocol.ledger import LedgerOperation, create_table, read_result, statement
from starrocks_txn_sink.sql.port import Answer, QueryPort, may_pass

Row = dict[str, Any]

_LOGIN_SECONDS = 10.0
"""A port of another protocol accepts the connection and says nothing: nobody should wait for a statement's time."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The first rows of a result, and its total number of rows."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    total: int


class SqlConnection:
    """One connection to one query port.

    Raises QueryFailed if the port does not answer, QueryRefused with the server's text if the server refuses. The text
    may repeat the statement, so show it to its author only and keep it out of logs.
    """

    def __init__(self, options: SinkOptions, address: Address) -> None:
        self.address = address
        self._options = options
        login = self._within(options.connect_timeout + min(options.read_timeout, _LOGIN_SECONDS))
        self._port = QueryPort(options, address, login, quotes_server=True)
        self._port.forward_to_leader(self._within(options.read_timeout))

    @classmethod
    def connect_any(cls, options: SinkOptions) -> SqlConnection:
        """Connect to the first address of `query_url` that accepts the login; raises the last address's error."""
        error: QueryFailed | QueryRefused = QueryFailed("query_url names no address.")
        for address in options.query_addresses:
            try:
                return cls(options, address)
            except (QueryFailed, QueryRefused) as failed:
                error = failed
        raise error

    def rows(self, sql: str, parameters: tuple[object, ...] = ()) -> list[Row]:
        """All rows as dicts. Column names are in lower case, because versions of StarRocks differ in their case."""
        answer = self._port.run(sql, parameters, self._within(self._options.read_timeout))
        names = [name.lower() for name in answer.columns]
        return [dict(zip(names, row, strict=True)) for row in answer.rows]

    def value(self, sql: str, parameters: tuple[object, ...] = ()) -> Any:
        """The first column of the first row; None without rows."""
        return next((next(iter(row.values())) for row in self.rows(sql, parameters)), None)

    def excerpt(self, sql: str, limit: int) -> Excerpt:
        """The first `limit` rows. Counts the remaining rows without keeping them, so memory stays bounded.

        `batch_deadline` bounds the whole statement: its author knows how many rows it returns.
        """
        answer = self._port.excerpt(sql, limit, self._within(self._options.batch_deadline))
        return Excerpt(answer.columns, tuple(answer.rows), answer.total)

    def close(self) -> None:
        """Close the connection; never raises."""
        self._port.close()

    @staticmethod
    def _within(seconds: float) -> Deadline:
        return Deadline.after(seconds, SystemClock())


# --- the leader ---

_TROUBLE = "Look at the frontend's log, and at SHOW BACKENDS: the same statement may succeed later."
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class LeaderConnection:
    """A connection to the leader frontend; opens on first use and again after an error. Thread-safe.

    `query` raises QueryFailed if no answer arrived (the statement may have taken effect), QueryRefused if the server
    refused the statement, RedirectRefused if the leader's host is not one of the user's.
    """

    def __init__(self, options: SinkOptions, open_port: Callable[..., QueryPort] = QueryPort) -> None:
        self._options = options
        self._open_port = open_port
        self._port: QueryPort | None = None
        self._forwards = False  # a frontend that does not lead passes queries on
        self._addresses = list(options.query_addresses)  # those that failed last are asked last
        self._lock = threading.Lock()

    def query(self, sql: str, parameters: tuple[object, ...], deadline: Deadline) -> list[tuple[Any, ...]]:
        """Run one statement on the leader and return its rows."""
        return self._run(sql, parameters, deadline).rows

    def create_table(self, ddl: Callable[[int | None], str], replication: int | None, deadline: Deadline) -> None:
        """Create one of the sink's own tables if it does not exist; `ddl` makes its statement.

        Without `replication` the server takes default_replication_num, and refuses if fewer backends are alive
        (wire contract 10.8). A cluster of fewer backends then gets one replica on each. A cluster of which some are
        down gets no weaker table: QueryRefused names `ledger_replication`.
        """
        try:
            self.query(ddl(replication), (), deadline)
        except QueryRefused as refused:
            fitting = self._fitting_replication(replication, refused, deadline)
            self.query(ddl(fitting), (), deadline)

    def _fitting_replication(self, replication: int | None, refused: QueryRefused, deadline: Deadline) -> int:
        """The number of backends if the cluster has fewer than replicas are wanted by default; else raises."""
        try:
            nodes = self._named_rows("SHOW BACKENDS", deadline)
            default = self._named_rows("ADMIN SHOW FRONTEND CONFIG LIKE 'default_replication_num'", deadline)
        except QueryRefused:
            raise refused from None  # without the privilege to ask
        alive = sum(_is_true(node.get("alive", "true")) for node in nodes)
        wanted = replication or next((int(row["value"]) for row in default if str(row.get("value")).isdecimal()), 3)
        if not nodes or alive >= wanted:
            raise refused
        if replication is None and alive == len(nodes):
            return alive
        raise QueryRefused(
            f"A table of the sink's own would have {wanted} replicas, and {alive} of {len(nodes)} backends are alive.",
            hint=f"Start more backends, or set ledger_replication={max(1, alive)}.",
            backends=alive,
        ) from None

    def _named_rows(self, sql: str, deadline: Deadline) -> list[dict[str, Any]]:
        answer = self._run(sql, (), deadline)
        return [dict(zip(map(str.lower, answer.columns), row, strict=True)) for row in answer.rows]

    def _run(self, sql: str, parameters: tuple[object, ...], deadline: Deadline) -> Answer:
        with self._lock:
            try:
                if self._port is not None and self._has_stepped_down(self._port, deadline):
                    self._drop()
                if self._port is None:
                    self._port = self._find_leader(deadline)
                deadline.bounded(self._options.read_timeout, "the ledger's answer")
                return self._port.run(sql, parameters, deadline.earlier(self._options.read_timeout))
            except StarRocksSinkError:
                self._drop()  # another frontend may lead now
                raise

    def close(self) -> None:
        """Close the connection; a later `query` opens a new one."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        port, self._port = self._port, None
        if port is not None:
            port.close()

    def _has_stepped_down(self, port: QueryPort, deadline: Deadline) -> bool:
        """Whether the frontend of the kept connection is a follower now that would answer from its own state."""
        asks = self._options.find_leader and not self._forwards
        return asks and self._leader_of(port, deadline) is not None

    def _open(self, address: Address, deadline: Deadline) -> QueryPort:
        port = self._open_port(self._options, address, deadline)
        try:
            self._forwards = port.forward_to_leader(deadline.earlier(self._options.read_timeout))
        except StarRocksSinkError:
            port.close()
            raise
        return port

    def _find_leader(self, deadline: Deadline) -> QueryPort:
        failure = "no address was given"
        for address in tuple(self._addresses):
            try:
                port = self._open(address, deadline)
            except QueryFailed as error:
                failure = error.message
                self._addresses.sort(key=address.__eq__)
                continue
            try:
                leader = self._leader_of(port, deadline) if self._options.find_leader else None
            except StarRocksSinkError:
                port.close()
                raise
            if leader is None:
                return port
            port.close()
            return self._open(leader, deadline)
        names = ", ".join(address.netloc for address in self._options.query_addresses)
        raise QueryFailed(f"No address of query_url ({names}) can be used: {failure}")

    def _leader_of(self, port: QueryPort, deadline: Deadline) -> Address | None:
        """The leader's address; None if `port` leads itself, or if there is only one frontend."""
        try:
            answer = port.run("SHOW FRONTENDS", (), deadline.earlier(self._options.read_timeout))
        except QueryRefused as error:
            if may_pass(error):
                raise QueryFailed(error.message, hint=_TROUBLE, **error.context) from None
            raise _no_leader_error(error) from None
        names = [column.lower() for column in answer.columns]
        frontends = [dict(zip(names, row, strict=True)) for row in answer.rows]
        for frontend in frontends:
            if str(frontend.get("role", "")).upper() == "LEADER" or _is_true(frontend.get("ismaster")):
                return None if len(frontends) == 1 else self._other_leader(port, frontend)
        return None

    def _other_leader(self, port: QueryPort, frontend: dict[str, Any]) -> Address | None:
        """The leader's checked address; None if it is `port` itself, perhaps under another name.

        The sink logs in at the leader, so its host obeys the rules of redirects.
        """
        rules = self._options.redirect_rules
        try:
            host, number = str(frontend["ip"]), int(frontend["queryport"])
            leader = rules.query_target(host, number)
        except (KeyError, TypeError, ValueError):
            raise QueryFailed(
                "SHOW FRONTENDS gives the leader an address that is no host and port.",
                hint=HOST_HINT,
                place=port.address.netloc,
            ) from None
        if _is_same_address(leader, port.address) or port.is_connected_to(host, number):
            return None
        if not rules.allows_query(leader):
            raise RedirectRefused(
                f"SHOW FRONTENDS names the leader {leader.netloc}, whose host is neither in load_url, query_url nor "
                "redirect_hosts; the sink did not log in there.",
                hint=f"If that server is yours, set {rules.option_line(leader)}, or map it with redirect_map.",
                place=port.address.netloc,
            )
        return leader


class SqlLedger:
    """`protocol.label.Ledger` over a LeaderConnection: each question is one SQL statement."""

    def __init__(self, connection: LeaderConnection, database: str) -> None:
        self._connection = connection
        self._database = database

    def create(self, replication: int | None, deadline: Deadline) -> None:
        """Create the ledger table if it does not exist; raises QueryRefused without the privilege or the backends."""
        self._connection.create_table(lambda number: create_table(self._database, number), replication, deadline)

    def execute(self, request: LedgerRequest, deadline: Deadline) -> Any:
        """Execute `request` (one of `protocol.ledger`)."""
        if not isinstance(request, LedgerOperation):
            raise TypeError(f"{type(request).__name__} is no request for the ledger.")
        sql, parameters = statement(self._database, request)
        try:
            rows = self._connection.query(sql, parameters, deadline)
        except QueryRefused as refusal:
            if may_pass(refusal):
                raise QueryFailed(refusal.message, hint=_TROUBLE, **refusal.context) from None
            raise
        try:
            return read_result(request, rows)
        except (IndexError, TypeError, ValueError):
            raise QueryFailed(
                "The ledger's rows do not have the ledger's form.",
                hint="Check that query_url names StarRocks, and that nothing else writes into the ledger's table.",
            ) from None

    def close(self) -> None:
        self._connection.close()


def _no_leader_error(error: QueryRefused) -> QueryRefused:
    return QueryRefused(
        f"SHOW FRONTENDS failed, so the leader frontend is unknown: {error.message}",
        hint="Grant the user OPERATE ON SYSTEM, or set find_leader=False and let query_url name the leader alone.",
    )


def _is_same_address(leader: Address, address: Address) -> bool:
    if leader.port != address.port:
        return False
    return leader.host == address.host or {leader.host, address.host} <= set(_LOOPBACK)


def _is_true(value: object) -> bool:
    return str(value).lower() in ("true", "1")
