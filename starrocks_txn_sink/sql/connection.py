"""Connections to query ports, and the leader's for the ledger.

Two rules hold for every statement of the package (`QueryPort`):
- An exchange (connecting and login, or a statement with all its rows) ends by one deadline. A socket's own timeout
  restarts with each byte, so BoundedSocket gives every call only the remaining time.
- Each failure is typed. PyMySQL reads a broken packet with plain `struct` and slices, so it raises any exception.

**The leader** (`LeaderConnection`, and `SqlLedger` over it). A follower lags behind, so it may return an old owner or
old positions. SHOW FRONTENDS names the leader; the sink looks it up again after a connection breaks. A leader may also
step down in place and keep its connections. So each connection has the frontend forward queries to the leader (wire
contract 10.11); if the frontend cannot do so, the sink asks it who leads before every statement. All threads share one
connection, because one per thread would be mostly idle.
"""

from __future__ import annotations

import contextlib
import io
import re
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pymysql.cursors import SSCursor

from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.errors import (
    DeadlineExceeded,
    NoBackend,
    QueryFailed,
    QueryRefused,
    RedirectRefused,
    StarRocksSinkError,
)
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.addresses import HOST_HINT, Address
from starrocks_txn_sink.protocol.label import LedgerRequest
from starrocks_txn_sink.protocol.ledger import create_table
from starrocks_txn_sink.sql.failures import is_answer, may_pass, typed_error
from starrocks_txn_sink.sql.login import Driver, dial, login

_FETCH_ROWS = 1000
_TROUBLE = "Look at the frontend's log, and at SHOW BACKENDS: the same statement may succeed later."
_LOOPBACK = ("127.0.0.1", "localhost", "::1")

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows of a statement, each as long as `columns`. `total` also counts rows that were read but not kept."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    total: int

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError("a row has another number of columns")

    def as_dicts(self) -> list[Row]:
        """The rows as dicts. Column names are in lower case, because versions of StarRocks differ in their case."""
        names = [name.lower() for name in self.columns]
        return [dict(zip(names, row, strict=True)) for row in self.rows]


class QueryPort:
    """A logged-in connection. Not thread-safe.

    Raises QueryFailed if no usable answer arrived (a statement may have taken effect), QueryRefused if the server
    refused, DeadlineExceeded if no time is left at the start. With `quotes_server`, QueryRefused has the server's text,
    which may repeat the statement and its values: for a person who wrote the statement, never for a log.
    """

    def __init__(
        self,
        options: SinkOptions,
        address: Address,
        deadline: Deadline,
        *,
        quotes_server: bool = False,
    ) -> None:
        self.address = address
        self._quotes_server = quotes_server
        self._driver: Driver | None = None
        settings = login(options, address)
        seconds = deadline.limit(options.connect_timeout, f"connecting to {address.netloc}")
        with self._typed():
            self._socket = BoundedSocket(dial(address, seconds), deadline.earlier(options.read_timeout))
            self._driver = Driver(**settings)
            self._driver.connect(self._socket)  # type: ignore[arg-type]

    def run(self, sql: str, parameters: tuple[object, ...], deadline: Deadline) -> Answer:
        """Run one statement; `%s` marks a parameter, except inside a name in backticks."""
        with self._exchange(deadline) as driver, driver.cursor() as cursor:
            cursor.execute(bind(sql, [str(cursor.mogrify("%s", (value,))) for value in parameters]))
            columns = _columns(cursor)
            rows = list(cursor.fetchall())
            return Answer(columns, rows, len(rows))

    def forward_to_leader(self, deadline: Deadline) -> bool:
        """Have the frontend pass queries on while it does not lead, now or later (wire contract 10.11).

        False if the server does not know how: then a follower answers from its own state.
        """
        try:
            self.run("SET follower_query_forward_mode = 'leader'", (), deadline)
        except QueryRefused:
            return False
        return True

    def excerpt(self, sql: str, limit: int, deadline: Deadline) -> Answer:
        """Run `sql` as it is and keep the first `limit` rows; the rest is counted, so memory stays bounded."""
        with self._exchange(deadline) as driver, _unbuffered(driver) as cursor:
            cursor.execute(sql)
            columns = _columns(cursor)
            first = list(cursor.fetchmany(limit)) if columns else []
            total = len(first)
            while fetched_rows := (cursor.fetchmany(_FETCH_ROWS) if total else ()):
                total += len(fetched_rows)
            return Answer(columns, first, total)

    def is_connected_to(self, host: str, port: int) -> bool:
        """Whether the peer's own address is `host` and `port`."""
        try:
            return bool(self._socket.peer()[:2] == (host, port))
        except OSError:
            return False

    @property
    def is_open(self) -> bool:
        """Whether statements may run: neither `close` nor an error without an answer has ended the connection."""
        return self._driver is not None

    def close(self) -> None:
        """Close the connection; never raises."""
        driver, self._driver = self._driver, None
        if driver is not None:
            with contextlib.suppress(Exception):
                driver.close()

    @contextlib.contextmanager
    def _exchange(self, deadline: Deadline) -> Iterator[Driver]:
        deadline.limit(1.0, f"the answer of {self.address.netloc}")
        if self._driver is None:
            raise QueryFailed("The connection to the query port is closed.", place=self.address.netloc)
        self._socket.deadline = deadline
        with self._typed():
            yield self._driver

    @contextlib.contextmanager
    def _typed(self) -> Iterator[None]:
        """Turn each exception into a typed error. Without an answer the protocol's state is unknown: close."""
        try:
            yield
        except QueryRefused:
            raise
        except StarRocksSinkError:
            self.close()
            raise
        except Exception as error:
            greeted = self._driver is None or self._driver.greeted
            typed = typed_error(error, self.address.netloc, quotes_server=self._quotes_server, greeted=greeted)
            if isinstance(typed, QueryFailed) and not is_answer(error):
                self.close()
            raise typed from None  # the driver's text and frames may hold the statement and its values


_NAME_OR_MARK = re.compile(r"`(?:[^`]|``)*`|%s")


def bind(sql: str, literals: Sequence[str]) -> str:
    """`sql` with its marks `%s` replaced by `literals`; no other `%` has a meaning. TypeError for another number."""
    literals_left = iter(literals)
    marks = [word for word in _NAME_OR_MARK.findall(sql) if word == "%s"]
    if len(marks) != len(literals):
        raise TypeError(f"{len(marks)} marks, {len(literals)} parameters")
    return _NAME_OR_MARK.sub(lambda match: next(literals_left) if match[0] == "%s" else match[0], sql)


class BoundedSocket:
    """A connected socket (plain, after `start_tls` with TLS) that never waits past `deadline`."""

    def __init__(self, connected: Any, deadline: Deadline) -> None:
        self._socket = connected
        self.deadline = deadline

    def apply_deadline(self) -> Any:
        """Set the socket's timeout to the remaining time, and return the socket for one call."""
        remaining = self.deadline.remaining()
        if remaining <= 0.0:
            raise TimeoutError("no time is left")
        self._socket.settimeout(remaining)
        return self._socket

    def settimeout(self, seconds: float | None) -> None:
        """Ignore the driver's timeouts: they would replace the remaining time."""

    def sendall(self, data: bytes) -> None:
        """Send all of `data`; raises TimeoutError at the deadline."""
        self.apply_deadline().sendall(data)

    def makefile(self, _: str) -> io.BufferedReader:
        """The server's bytes as a stream; each receive raises TimeoutError at the deadline."""
        return io.BufferedReader(_Received(self))

    def start_tls(self, wrap: Callable[..., ssl.SSLSocket], host: str) -> None:
        """Go on with TLS: `wrap` shakes hands with `host`; raises ssl.SSLError, and TimeoutError at the deadline."""
        self._socket = wrap(self.apply_deadline(), server_hostname=host)

    def peer(self) -> Any:
        """The peer's own address: host, port, and more for IPv6. Raises OSError."""
        return self._socket.getpeername()

    def close(self) -> None:
        """Close the socket; sends nothing more."""
        self._socket.close()


class _Received(io.RawIOBase):
    def __init__(self, bounded: BoundedSocket) -> None:
        self._bounded = bounded

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        received: int = self._bounded.apply_deadline().recv_into(buffer)
        return received


# --- errors of the driver ---


@contextlib.contextmanager
def _unbuffered(driver: Driver) -> Iterator[SSCursor]:
    """A cursor that streams. After an error its result must not read the remaining rows when it is collected."""
    cursor = driver.cursor(SSCursor)
    try:
        yield cursor
        cursor.close()
    except BaseException:
        result = getattr(driver, "_result", None) or getattr(cursor, "_result", None)
        if result is not None:
            result.unbuffered_active = False
        raise


def _columns(cursor: Any) -> tuple[str, ...]:
    return tuple(str(column[0]) for column in cursor.description or ())


# --- the release ---

VERSION_SQL = "SELECT @@version_comment AS version"
"""current_version() needs a backend (wire contract 10.14)."""
_VERSION_WORDS = "StarRocks version "  # before the number, in some releases


def read_version(rows: Sequence[Row]) -> str:
    """The release in the answer to VERSION_SQL; empty without one."""
    return str(next(iter(rows), {}).get("version", "")).removeprefix(_VERSION_WORDS)


# --- any frontend ---

_LOGIN_SECONDS = 10.0
"""For the login of SqlConnection: a port of another protocol accepts the connection and never sends a greeting."""


class SqlConnection:
    """A connection to any frontend, for the tools: rows with column names, errors with the server's text.

    Queries that decide about commits do not use it, because an older server's follower may return old rows.
    Raises QueryFailed if the port does not answer, QueryRefused with the server's text if the server refuses. The text
    may repeat the statement, so show it to its author only and keep it out of logs.
    """

    def __init__(self, options: SinkOptions, address: Address) -> None:
        self._options = options
        deadline = self._within(options.connect_timeout + min(options.read_timeout, _LOGIN_SECONDS))
        self._port = QueryPort(options, address, deadline, quotes_server=True)
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

    @property
    def is_open(self) -> bool:
        """As `QueryPort.is_open`."""
        return self._port.is_open

    def rows(self, sql: str, parameters: tuple[object, ...] = (), seconds: float | None = None) -> list[Row]:
        """All rows as dicts, with column names in lower case; within `seconds`, None: `read_timeout`."""
        limit = self._options.read_timeout if seconds is None else seconds
        return self._port.run(sql, parameters, self._within(limit)).as_dicts()

    def version(self) -> str:
        """The server's release, as in `4.1.1-ad83983`; needs no backend."""
        return read_version(self.rows(VERSION_SQL))

    def value(self, sql: str, parameters: tuple[object, ...] = ()) -> Any:
        """The first column of the first row; None without rows."""
        return next((next(iter(row.values())) for row in self.rows(sql, parameters)), None)

    def excerpt(self, sql: str, limit: int) -> Answer:
        """The first `limit` rows. Counts the remaining rows without keeping them, so memory stays bounded.

        `batch_deadline` bounds the whole statement: its author knows how many rows it returns.
        """
        return self._port.excerpt(sql, limit, self._within(self._options.batch_deadline))

    def close(self) -> None:
        """Close the connection; never raises."""
        self._port.close()

    @staticmethod
    def _within(seconds: float) -> Deadline:
        return Deadline.after(seconds, SystemClock())


# --- the leader ---


class LeaderConnection:
    """A connection to the leader frontend; opens on first use and again after an error. Thread-safe.

    `query` raises QueryFailed if no answer arrived (the statement may have taken effect), QueryRefused if the server
    refused the statement, RedirectRefused if the leader's host is not one of the user's.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._port: QueryPort | None = None
        self._forwards = False  # whether the frontend of `_port` forwards queries while it does not lead
        self._addresses = list(options.query_addresses)  # an address that failed goes to the end
        self._lock = threading.Lock()

    def query(self, sql: str, parameters: tuple[object, ...], deadline: Deadline) -> list[tuple[Any, ...]]:
        """Run one statement on the leader and return its rows."""
        return self._run(sql, parameters, deadline).rows

    def rows(self, sql: str, parameters: tuple[object, ...], deadline: Deadline) -> list[Row]:
        """Run one statement on the leader and return its rows as dicts, with column names in lower case."""
        return self._run(sql, parameters, deadline).as_dicts()

    def create_table(self, ddl: Callable[[int | None], str], replication: int | None, deadline: Deadline) -> None:
        """Create one of the sink's own tables if it does not exist; `ddl` makes its statement.

        Without `replication` the server takes default_replication_num, and refuses if fewer backends are alive
        (wire contract 10.8). If the cluster has fewer backends, each gets a replica. If some of its backends are down,
        the sink makes no weaker table: QueryRefused names `ledger_replication`.
        """
        try:
            self.query(ddl(replication), (), deadline)
        except QueryRefused as refused:
            fitting = self._fitting_replication(replication, refused, deadline)
            self.query(ddl(fitting), (), deadline)

    def _fitting_replication(self, replication: int | None, refused: QueryRefused, deadline: Deadline) -> int:
        """The number of backends, if all are alive and fewer than the default replicas; else raises QueryRefused."""
        try:
            nodes = self._run("SHOW BACKENDS", (), deadline).as_dicts()
            default = self._run("ADMIN SHOW FRONTEND CONFIG LIKE 'default_replication_num'", (), deadline).as_dicts()
        except QueryRefused:
            raise refused from None  # without the privilege to ask
        alive = count_alive(nodes)
        copies = replication or next((int(row["value"]) for row in default if str(row.get("value")).isdecimal()), 3)
        if not nodes or alive >= copies:
            raise refused
        if not alive:
            raise NoBackend(f"None of the {len(nodes)} backends is alive.") from None
        if replication is None and alive == len(nodes):
            return alive
        raise QueryRefused(
            f"A table of the sink's own would have {copies} replicas, and {alive} of {len(nodes)} backends are alive.",
            hint=f"Start more backends, or set ledger_replication={max(1, alive)}.",
            backends=alive,
        ) from None

    def _run(self, sql: str, parameters: tuple[object, ...], deadline: Deadline) -> Answer:
        with self._lock:
            try:
                if self._port is not None and self._has_stepped_down(self._port, deadline):
                    self._drop()
                if self._port is None:
                    self._port = self._find_leader(deadline)
                deadline.limit(self._options.read_timeout, "the query port's answer")
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
        """Whether the frontend of `port` is a follower now, and answers from its own state."""
        finds_leader = self._options.find_leader and not self._forwards
        return finds_leader and self._leader_of(port, deadline) is not None

    def _open(self, address: Address, deadline: Deadline) -> QueryPort:
        port = QueryPort(self._options, address, deadline)
        try:
            self._forwards = port.forward_to_leader(deadline.earlier(self._options.read_timeout))
        except StarRocksSinkError:
            port.close()
            raise
        return port

    def _find_leader(self, deadline: Deadline) -> QueryPort:
        failure = QueryFailed("no address was given")
        for address in tuple(self._addresses):
            try:
                port = self._open(address, deadline)
            except QueryFailed as error:
                failure = error
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
        raise QueryFailed(f"No address of query_url ({names}) can be used: {failure.message}", hint=failure.advice)

    def _leader_of(self, port: QueryPort, deadline: Deadline) -> Address | None:
        """The leader's address; None if `port` leads itself, or if there is only one frontend."""
        try:
            answer = port.run("SHOW FRONTENDS", (), deadline.earlier(self._options.read_timeout))
        except QueryRefused as error:
            if may_pass(error):
                raise QueryFailed(error.message, hint=_TROUBLE, **error.context) from None
            raise QueryRefused(
                f"SHOW FRONTENDS failed, so the leader frontend is unknown: {error.message}",
                hint="Grant the user OPERATE ON SYSTEM, or set find_leader=False and let query_url name the leader "
                "alone.",
            ) from None
        frontends = answer.as_dicts()
        leader = next(filter(leads, frontends), None)
        return None if leader is None or len(frontends) == 1 else self._other_leader(port, leader)

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
        """Execute `request` (one of `protocol.ledger`); after its own time the one that has the same result."""
        if request.seconds is None:
            return self._execute(request, deadline)
        limit = deadline.earlier(request.seconds)
        try:
            return self._execute(request, limit)
        except (QueryFailed, DeadlineExceeded):
            if not limit.expired() or deadline.expired():
                raise
        if request.instead is not None:
            return self.execute(request.instead, deadline)
        raise QueryFailed(
            f"The list of open labels did not come within {request.seconds:g} s.",
            hint="Open loads hold all threads of a backend, or a commit waits for one: doctor has the numbers, and "
            "SHOW PROC '/transactions/<database>/running' the transactions. They end at their `timeout`.",
        )

    def _execute(self, request: LedgerRequest, deadline: Deadline) -> Any:
        sql, parameters = request.statement(self._database)
        try:
            rows = self._connection.query(sql, parameters, deadline)
        except QueryRefused as refusal:
            if may_pass(refusal):
                raise QueryFailed(refusal.message, hint=_TROUBLE, **refusal.context) from None
            raise
        try:
            return request.result(rows)
        except (IndexError, TypeError, ValueError):
            raise QueryFailed(
                "The ledger's rows do not have the ledger's form.",
                hint="Check that query_url names StarRocks, and that nothing else writes into the ledger's table.",
            ) from None


def _is_same_address(leader: Address, address: Address) -> bool:
    if leader.port != address.port:
        return False
    return leader.host == address.host or {leader.host, address.host} <= set(_LOOPBACK)


def leads(frontend: Row) -> bool:
    """Whether a row of SHOW FRONTENDS is the leader's."""
    return str(frontend.get("role", "")).upper() == "LEADER" or _is_true(frontend.get("ismaster"))


def count_alive(backends: Sequence[Row]) -> int:
    """The number of backends in the rows of SHOW BACKENDS that are alive."""
    return sum(map(is_alive, backends))


def is_alive(server: Row) -> bool:
    """Whether the server in a row of SHOW FRONTENDS, SHOW BACKENDS or SHOW COMPUTE NODES is alive."""
    return _is_true(server.get("alive", "true"))


def _is_true(value: object) -> bool:
    return str(value).lower() in ("true", "1")
