"""The emulator as an object: frontends, backends, query port over one store, in this process."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from starrocks_emulator.faults import FaultPlan
from starrocks_emulator.http.be import BackendService
from starrocks_emulator.http.control import Control, FaultGate, Levers
from starrocks_emulator.http.fe import FollowerFrontend, LeaderFrontend
from starrocks_emulator.http.listener import Listener
from starrocks_emulator.settings import SettingError, Settings
from starrocks_emulator.sql.ddl import require_extensible_sqlglot
from starrocks_emulator.sql.information_schema import (
    be_config_rows,
    load_rows,
    stream_load_rows,
    tracking_log_rows,
    transaction_rows,
)
from starrocks_emulator.sql.mysql import QueryGate, QueryListener
from starrocks_emulator.sql.scan import ScanListener
from starrocks_emulator.sql.statements import LaggingStore
from starrocks_emulator.tables.apply import Shuffle
from starrocks_emulator.tables.store import Store
from starrocks_emulator.transactions.backend import Backend, body_names
from starrocks_emulator.transactions.commit import Committer, Publisher
from starrocks_emulator.transactions.frontend import Frontend, refresh_committed
from starrocks_emulator.transactions.memory import Clock, FrontendMemory, SystemClock, scan_threads
from starrocks_emulator.transactions.merging import Merging
from starrocks_emulator.transactions.messages import Credentials
from starrocks_emulator.transactions.scan_threads import Scans, ScanThreads
from starrocks_emulator.transactions.single import SingleTable
from starrocks_emulator.users import Users

if TYPE_CHECKING:
    from typing_extensions import Self

Part = TypeVar("Part")
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class RunningServer(ABC):
    """What starts and stops; as a context manager it starts at the entry and stops at the exit."""

    @abstractmethod
    def start(self) -> None:
        """Return once it answers."""

    @abstractmethod
    def stop(self) -> object:
        """Return once it has ended; nothing happens to what does not run."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Emulator(RunningServer):
    """An emulator of StarRocks on loopback, not StarRocks.

    `start` binds every port (0 asks for a free one) and `stop` leaves no thread, socket or file lock behind. Committed
    data stays in `data_dir`; live transactions do not survive. Also a context manager.
    """

    def __init__(
        self,
        data_dir: Path,
        settings: Settings | None = None,
        *,
        fault_plan: object = None,
        clock: Clock | None = None,
    ) -> None:
        self.settings = settings or Settings()
        if self.settings.host not in _LOOPBACK:
            raise SettingError(f"The emulator listens on loopback only, not on {self.settings.host}. Use 127.0.0.1.")
        require_extensible_sqlglot()
        self.faults = FaultPlan(fault_plan)
        self._data_dir = data_dir
        self._clock = clock or SystemClock()
        self._stopping = threading.Event()
        self._stack = ExitStack()
        self._leader: Listener | None = None
        self._followers: list[Listener] = []
        self._backends: list[tuple[Backend, Listener]] = []
        self._query: QueryListener | None = None
        self._lagging: list[tuple[LaggingStore, QueryListener]] = []
        self._store: Store | None = None

    def start(self) -> None:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        settings = self.settings
        store = self._store = Store(
            self._data_dir,
            tracking_url=self._tracking_url,
            shuffle=Shuffle(settings.row_order, settings.row_order_seed),
            alter_seconds=settings.alter_seconds,
            key_limit=lambda: self._memory.configuration.key_limit,
        )
        self._stack.callback(store.close)
        memory = self._memory = FrontendMemory(settings, store, self._clock, stopped=self._stopping.is_set)
        publisher = self._publisher = Publisher(self._publish)
        self._users = Users(settings.user, settings.password)
        credentials = Credentials(self._users)
        gate = FaultGate(
            self.faults, Levers(self._stopping.wait, memory.forget, self.restart_frontend, self._lose_backends)
        )
        names = body_names()
        backends = [
            Backend(store, settings.limits, names, scan_threads(memory, settings.cores))
            for _ in range(settings.backends)
        ]
        self._scans = Scans(
            lambda: [backend.threads for backend in backends if backend.alive],
            memory.waiting_commits,
            self._clock.monotonic,
            self._stopping.wait,
            settings.log_seconds,
        )
        single = SingleTable(memory, publisher, backends)
        merging = Merging(single)
        for place, backend in enumerate(backends):
            service = BackendService(backend, gate, store.tracking_log, single, merging, credentials)
            listener = self._listen(settings.be_port if place == 0 else 0, service, f"be-{place}")
            backend.address = (listener.host, listener.port)
            self._backends.append((backend, listener))
        scans = ScanListener(store, settings.host, settings.generation.version)
        self._stack.callback(scans.stop)
        scans.start()
        frontend = Frontend(memory, backends)
        leader = LeaderFrontend(
            credentials,
            frontend,
            Committer(memory, publisher),
            single,
            gate,
            Control(self.faults, self.release_held, self.catch_up),
            scans.plan,
        )
        self._leader = self._listen(settings.fe_port, leader, "fe")
        follower = FollowerFrontend(credentials, lambda: self.load_url)
        for place in range(settings.followers):
            self._followers.append(self._listen(0, follower, f"fe-follower-{place}"))
        store.add_virtual_table("information_schema", "loads", lambda: load_rows(memory, store.inserted))
        store.add_virtual_table(
            "information_schema", "load_tracking_logs", lambda: tracking_log_rows(memory, self._log_at)
        )
        store.add_virtual_table("information_schema", "be_configs", lambda: be_config_rows(memory, settings.backends))
        store.add_virtual_table("proc", "stream_loads", lambda: stream_load_rows(memory))
        store.add_virtual_table("proc", "transactions", lambda: transaction_rows(memory))
        self._query = self._answer_queries(store, settings.query_port, self.fe_port)
        for listener in self._followers:
            lagging = LaggingStore(store)
            self._stack.callback(lagging.close)
            self._lagging.append((lagging, self._answer_queries(lagging, 0, listener.port)))
        self._stack.callback(publisher.stop)
        self._stack.callback(merging.stop)

    def _answer_queries(self, store: Store | LaggingStore, port: int, http_port: int) -> QueryListener:
        listener = QueryListener(
            store,
            host=self.settings.host,
            port=port,
            users=self._users,
            leader=lambda: listener is self._query,
            version=self.settings.generation.version,
            http_port=http_port,
            be_http_ports=lambda: tuple(self.be_ports),
            backends_alive=lambda: any(backend.alive for backend, _ in self._backends),
            config=self._memory.configuration,
            gate=QueryGate(self.faults, self._stopping.wait),
            scans=self._scans,
            cores=self.settings.cores,
            peers=lambda: tuple(
                listener_.frontend for listener_ in self._query_listeners() if listener_ is not listener
            ),
        )
        listener.start()
        self._stack.callback(listener.stop)
        return listener

    def _query_listeners(self) -> list[QueryListener]:
        return [_started(self._query), *(listener for _, listener in self._lagging)]

    def _listen(self, port: int, service: LeaderFrontend | FollowerFrontend | BackendService, name: str) -> Listener:
        listener = Listener(self.settings.host, port, service, name)
        self._stack.callback(listener.stop)
        listener.start()
        return listener

    def stop(self) -> None:
        """End listeners, connections and waiting faults, then close the store. May be called twice."""
        self._stopping.set()
        self._stack.close()

    # --- where it listens ---------------------------------------------------------------------------------------------

    @property
    def fe_port(self) -> int:
        """HTTP port of the leading frontend; raises RuntimeError before `start`."""
        return _started(self._leader).port

    @property
    def follower_ports(self) -> list[int]:
        """HTTP ports of the followers."""
        return [listener.port for listener in self._followers]

    @property
    def be_port(self) -> int:
        """HTTP port of the first backend."""
        return self.be_ports[0]

    @property
    def be_ports(self) -> list[int]:
        """HTTP ports of all backends, also of those that are ended."""
        return [listener.port for _, listener in self._backends]

    @property
    def query_port(self) -> int:
        """MySQL port of the leading frontend; raises RuntimeError before `start`."""
        return int(_started(self._query).port)

    @property
    def follower_query_ports(self) -> list[int]:
        """MySQL ports of the followers."""
        return [listener.port for _, listener in self._lagging]

    @property
    def load_url(self) -> str:
        """Where the leading frontend answers HTTP, as the sink's option of this name takes it."""
        return f"http://{self.settings.host}:{self.fe_port}"

    @property
    def query_url(self) -> str:
        """Where the leading frontend answers SQL, as the sink's option of this name takes it."""
        return f"mysql://{self.settings.host}:{self.query_port}"

    @property
    def store(self) -> Store:
        """The tables, for tests that look past HTTP and SQL; raises RuntimeError before `start`."""
        return _started(self._store)

    @property
    def scan_threads(self) -> list[ScanThreads]:
        """Those of each backend."""
        return [backend.threads for backend, _ in self._backends]

    # --- what may happen to it ----------------------------------------------------------------------------------------

    def restart_frontend(self) -> None:
        """As if the frontend process had died and come back: live transactions and connections are gone."""
        # Memory first: who sees the connection end must find the tasks gone.
        self._memory.restart()
        _started(self._leader).end_connections()

    def forget_labels(self, pattern: str = "") -> None:
        """Forget finished labels that match the regular expression, as retention would."""
        self._memory.forget(pattern)

    def catch_up(self) -> None:
        """Let the followers see what is visible now; until then they answer queries from an older state."""
        for lagging, _ in self._lagging:
            lagging.catch_up()

    def step_down(self) -> None:
        """Let the leader become a follower in place, and the first follower lead: all connections stay.

        To the one that leads now each label that is remembered is BEGIN, and cannot be committed.
        """
        self._memory.hand_over()
        self._change_roles(_started(self._leader), self._followers[0])
        leader, (_, next_leader) = _started(self._query), self._lagging[0]
        lagging = LaggingStore(self.store)
        self._stack.callback(lagging.close)
        next_leader.store, leader.store = self.store, lagging
        self._query, self._lagging[0] = next_leader, (lagging, leader)

    def _change_roles(self, leader: Listener, follower: Listener) -> None:
        leader.service, follower.service = follower.service, leader.service
        self._leader, self._followers[0] = follower, leader

    def end_backends(self) -> None:
        """As if no backend were there: connections are gone, no load has one, until `start_backends`."""
        for backend, _ in self._backends:
            backend.alive = False
        self._lose_backends()

    def start_backends(self) -> None:
        """Let loads find backends again; what the old ones held is lost."""
        for backend, _ in self._backends:
            backend.alive = True

    def release_held(self) -> list[int]:
        """Let every commit that is held at COMMITTED become VISIBLE; their transaction ids."""
        return self._publisher.release()

    def _publish(self, txn_id: int) -> None:
        self.store.publish(txn_id)
        refresh_committed(self._memory)

    def _lose_backends(self) -> None:
        for backend, listener in self._backends:
            backend.crash()
            listener.end_connections()

    def _log_at(self, url: str) -> str:
        return self.store.tracking_log(url.rpartition("=")[2])

    def _tracking_url(self, log_id: str) -> str:
        return f"http://{self.settings.host}:{self.be_port}/api/_load_error_log?file={log_id}"


def _started(part: Part | None) -> Part:
    if part is None:
        raise RuntimeError("The emulator has not been started; call start() first.")
    return part
