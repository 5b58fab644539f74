"""The query port: the MySQL protocol over the store, in a thread of its own, each statement in a worker thread.

A fault plan makes statements slow, refuses them, or answers them with other rows.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, cast

from mysql_mimic import MysqlServer, ResultColumn, ResultSet
from mysql_mimic.auth import IdentityProvider, NativePasswordAuthPlugin, User
from mysql_mimic.charset import CharacterSet
from mysql_mimic.control import LocalControl
from mysql_mimic.errors import ErrorCode, MysqlError
from mysql_mimic.session import BaseSession
from mysql_mimic.types import ColumnType
from mysql_mimic.variables import GlobalVariables, SessionVariables

from starrocks_emulator.faults import LONGEST_WAIT, QUERY, Action, Call, FaultPlan, Rule
from starrocks_emulator.settings import Configuration, Settings
from starrocks_emulator.sql.session import UNKNOWN_ERROR, Answer, FrontendInfo, QuerySession, SqlError, text_answer
from starrocks_emulator.sql.statements import LaggingStore, run, use
from starrocks_emulator.sql.translate import INFORMATION_SCHEMA
from starrocks_emulator.tables.catalog import UNKNOWN_DATABASE, CatalogError
from starrocks_emulator.tables.store import Store
from starrocks_emulator.transactions.scan_threads import Scans
from starrocks_emulator.users import Users

DEFAULT_VERSION = "4.0.7-emulator"
_END_SECONDS = 5.0
_START_SECONDS = 30.0
_WORKERS = 512
"""Statements at a time: many may wait for a backend's threads while others are answered."""
_COLUMN_TYPES = {
    "BOOLEAN": ColumnType.TINY,
    "TINYINT": ColumnType.TINY,
    "SMALLINT": ColumnType.SHORT,
    "INTEGER": ColumnType.LONG,
    "BIGINT": ColumnType.LONGLONG,
    "HUGEINT": ColumnType.LONGLONG,
    "FLOAT": ColumnType.FLOAT,
    "DOUBLE": ColumnType.DOUBLE,
    "DATE": ColumnType.DATE,
    "TIMESTAMP": ColumnType.DATETIME,
    "BLOB": ColumnType.BLOB,
}

_DEFAULT_HANG = 60.0

# Failed statements are answered to the client. A log would only repeat the errors, and their texts may hold values.
_LOGGER = logging.getLogger("mysql_mimic")
_LOGGER.setLevel(logging.CRITICAL)
_LOGGER.addHandler(logging.NullHandler())
_LOGGER.propagate = False


class QueryGate:
    """Asks the plan about each statement. `wait` sleeps, or returns early when the emulator stops."""

    def __init__(self, plan: FaultPlan, wait: Callable[[float], object]) -> None:
        self._plan = plan
        self._wait = wait

    def fault_answer(self, sql: str) -> Answer | None:
        """The answer that a fault puts in place of the statement's own, if any; raises SqlError for a refusal."""
        answer = None
        for rule in self._plan.select(Call(QUERY, QUERY, " ".join(sql.split()))):
            if rule.action in (Action.DELAY, Action.HANG):
                pause = _DEFAULT_HANG if rule.seconds is None and rule.action is Action.HANG else rule.seconds or 0.0
                self._wait(min(pause, LONGEST_WAIT))
            elif rule.action is Action.ANSWER:
                answer = answer or _answer(rule)
        return answer


def _answer(rule: Rule) -> Answer:
    """A `status` of 200 brings the rows of `body` (JSON: names and rows), another one is MySQL's error code."""
    if rule.status != 200:
        raise SqlError(rule.body, rule.status)
    document = json.loads(rule.body)
    return text_answer(document["columns"], document["rows"])


class QueryListener:
    """Listens on `host`:`port` (0: a free port, see `port` once started) for MySQL clients of `store`.

    `leader` says whether this frontend is the leader now, `peers` what the others are; `version` is what
    current_version() answers, `config` what ADMIN SHOW FRONTEND CONFIG shows and ADMIN SET changes; `gate` acts faults
    out; statements wait for `scans`; backends have `cores`. `store` may be replaced while clients are connected: the
    frontend leads now, or follows.
    """

    def __init__(
        self,
        store: Store | LaggingStore,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        user: str = "root",
        password: str = "",
        users: Users | None = None,
        leader: Callable[[], bool] = lambda: True,
        version: str = DEFAULT_VERSION,
        http_port: int = 0,
        be_http_ports: Callable[[], tuple[int, ...]] = tuple,
        backends_alive: Callable[[], bool] = lambda: True,
        peers: Callable[[], tuple[FrontendInfo, ...]] = tuple,
        config: Configuration | None = None,
        gate: QueryGate | None = None,
        scans: Scans | None = None,
        cores: int = 1,
    ) -> None:
        self.port = port
        self._scans, self._cores = scans, cores
        self.store = store
        self._host = host
        self._users = users or Users(user, password)
        self._leader = leader
        self._version = version
        self._ports = http_port, be_http_ports
        self._backends_alive = backends_alive
        self._peers = peers
        self._config = config or Configuration(Settings())
        self._gate = gate or QueryGate(FaultPlan(), lambda _: None)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopping: asyncio.Event | None = None
        self._started = threading.Event()
        self._failures: list[Exception] = []
        self._workers: ThreadPoolExecutor | None = None

    def start(self) -> None:
        """Listen; returns when connections are accepted. Raises OSError when the port cannot be had."""
        self._started.clear()
        self._failures.clear()
        self._workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="query")
        self._thread = threading.Thread(target=self._run, name="query-port", daemon=True)
        self._thread.start()
        if not self._started.wait(_START_SECONDS):
            raise TimeoutError("The query port did not start.")
        if self._failures:
            self.stop()
            raise self._failures[0]

    def stop(self) -> None:
        """Close the port and all connections; statements that are running end first."""
        if self._thread is None:
            return
        if self._loop is not None and self._stopping is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        self._thread = None
        if self._workers is not None:
            self._workers.shutdown(wait=True)
            self._workers = None

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception as error:
            self._failures.append(error)
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        server = _Server(session_factory=self._session, identity_provider=_AnyUser(self._users), control=_Admission())
        await server.start_server(host=self._host, port=self.port)
        self.port = server.sockets()[0].getsockname()[1]
        self._started.set()
        await self._stopping.wait()
        for listening in server.sockets():
            self._loop.remove_reader(listening)  # accept no more; a closed server drops those it is accepting
        await server.hang_up()
        server.close()

    def _session(self) -> _Session:
        assert self._workers is not None
        state = QuerySession(version=self._version, users=self._users)
        if self._scans is not None:
            state.scans = self._scans
        return _Session(lambda: self.store, self._workers, self._frontend, state, self._gate)

    def _frontend(self) -> FrontendInfo:
        return replace(self.frontend, peers=self._peers(), config=self._config)

    @property
    def frontend(self) -> FrontendInfo:
        """This frontend as another one shows it."""
        http_port, be_http_ports = self._ports
        alive, leader = self._backends_alive(), self._leader()
        return FrontendInfo(self._host, http_port, self.port, be_http_ports(), alive, leader=leader, cores=self._cores)


class _Server(MysqlServer):  # type: ignore[misc]  # the library has no types
    """Remembers its connections, so that they can be closed with the port."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._clients: set[asyncio.Task[None]] = set()  # the loop itself keeps none alive
        self._writers: set[asyncio.StreamWriter] = set()

    def _client_connected_cb(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Called when the connection is made: its task may be cancelled before its first step."""
        self._writers.add(writer)
        task = asyncio.get_running_loop().create_task(self._serve_client(reader, writer))
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)

    async def _serve_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await super()._client_connected_cb(reader, writer)
        self._writers.discard(writer)

    async def hang_up(self) -> None:
        """End all connections, also those that are being accepted and become clients meanwhile."""
        ended: set[asyncio.Task[None]] = set()
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:  # each client's own tasks end with it
            for client in self._clients - ended:
                client.cancel()
            ended |= self._clients
            ended_tasks, _ = await asyncio.wait(tasks, timeout=_END_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not ended_tasks:
                break
        for writer in self._writers:
            writer.transport.abort()  # a close would wait for clients that do not read
        self._writers.clear()


class _AnyUser(IdentityProvider):  # type: ignore[misc]  # the library has no types
    """Knows users by the double hash of their passwords; an unknown one gets the refusal of a wrong password."""

    def __init__(self, users: Users) -> None:
        self._users = users

    def get_plugins(self) -> list[NativePasswordAuthPlugin]:
        return [NativePasswordAuthPlugin()]

    def get_default_plugin(self) -> NativePasswordAuthPlugin:
        return NativePasswordAuthPlugin()

    async def get_user(self, username: str) -> User:
        stored = self._users.double_hash(username)
        password = _NOBODY if stored is None else stored or None
        return User(name=username, auth_string=password, auth_plugin=NativePasswordAuthPlugin.name)


_NOBODY = "no password has this hash"


class _Admission(LocalControl):  # type: ignore[misc]  # the library has no types
    """Gives each connection the server's own words for a refused login before it says its first one."""

    async def add(self, connection: Any) -> int:
        connection.session.admit(connection)
        return int(await super().add(connection))


class _Session(BaseSession):  # type: ignore[misc]  # the library has no types
    """One client: hands statements to worker threads and their answers back."""

    def __init__(
        self,
        store: Callable[[], Store | LaggingStore],
        workers: ThreadPoolExecutor,
        frontend: Callable[[], FrontendInfo],
        state: QuerySession,
        gate: QueryGate,
    ) -> None:
        self._store = store
        self._gate = gate
        self._workers = workers
        self._frontend = frontend
        self._state = state
        self.variables = SessionVariables(GlobalVariables())
        self.variables.set("version", state.variables["version"], force=True)
        self.username = None
        self._affected = 0

    @property
    def database(self) -> str | None:
        return self._state.database or None

    @database.setter
    def database(self, name: str | None) -> None:
        self._state.database = name or ""

    def admit(self, connection: Any) -> None:
        """Refuse a login as the server does: with its text for a password, and for a database that does not exist."""
        plain_ok, plain_error = connection.ok, connection.error

        def ok(**figures: Any) -> bytes:
            database = self._state.database
            if database and not (database == INFORMATION_SCHEMA or self._store().has_database(database)):
                return bytes(plain_error(msg=f"Unknown database '{database}'", code=_code(UNKNOWN_DATABASE)))
            self._state.user = self.username or self._state.user
            if database not in ("", INFORMATION_SCHEMA) and not self._state.rights.sees(database):
                connection.stream.writer.transport.abort()  # the server hangs up without a word
            return bytes(plain_ok(**figures))

        def error(**fields: Any) -> bytes:
            if fields.get("code") == ErrorCode.ACCESS_DENIED_ERROR:
                fields["msg"] = f"Access denied for user '{self.variables.get('external_user')}' (using password: YES)"
            return bytes(plain_error(**fields))

        connection.ok, connection.error = ok, error
        self._plain = plain_ok, plain_error

    async def init(self, connection: Any) -> None:
        """Let the reply to a change carry its number of rows, which the library has no way to pass on."""
        connection.ok, connection.error = self._plain
        self._state.user = self.username or "root"
        self._state.connection_id = connection.connection_id
        plain_ok = connection.ok

        def ok(**figures: Any) -> bytes:
            affected, self._affected = self._affected, 0
            return bytes(plain_ok(**{"affected_rows": affected, **figures}))

        connection.ok = ok

    async def use(self, database: str) -> None:
        await self._work(lambda: use(cast(Store, self._store()), self._state, database))

    async def handle_query(self, sql: str, attrs: dict[str, str]) -> ResultSet:  # noqa: ARG002
        self._state.frontend = self._frontend()
        answer = await self._work(lambda: self._gate.fault_answer(sql) or self._run(sql))
        if not answer.columns:
            self._affected = answer.affected
            return ResultSet([], [])
        return _result(answer)

    def _run(self, sql: str) -> Answer:
        store = self._store()
        return store.query(sql, self._state) if isinstance(store, LaggingStore) else run(store, self._state, sql)

    async def _work(self, task: Callable[[], Any]) -> Any:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._workers, task)
        except (SqlError, CatalogError) as error:
            raise MysqlError(error.message, code=_code(error.code)) from error
        except Exception as error:
            raise MysqlError(f"{type(error).__name__}", code=_code(UNKNOWN_ERROR)) from error


def _code(number: int) -> ErrorCode:
    """The library knows few of MySQL's codes and takes only its own enum; give it the missing ones."""
    try:
        return ErrorCode(number)
    except ValueError:
        member = int.__new__(ErrorCode, number)
        member._name_, member._value_ = f"ERROR_{number}", number
        return member


def _result(answer: Answer) -> ResultSet:
    columns = []
    for name, kind in answer.columns:
        base = kind.partition("(")[0]
        column_type = ColumnType.NEWDECIMAL if base == "DECIMAL" else _COLUMN_TYPES.get(kind, ColumnType.VAR_STRING)
        charset = CharacterSet.binary if kind == "BLOB" else CharacterSet.utf8mb4
        columns.append(ResultColumn(name, column_type, charset))
    return ResultSet([tuple(row) for row in answer.rows], columns)
