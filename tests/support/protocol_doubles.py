"""A store in memory and a frontend over it, for tests of the protocol side alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starrocks_emulator.settings import Generation, Limits, Settings
from starrocks_emulator.tables.partitions import Opening
from starrocks_emulator.tables.plan import PlanRejected
from starrocks_emulator.tables.store import CommitRejected
from starrocks_emulator.transactions.backend import Backend, body_names
from starrocks_emulator.transactions.commit import CommitFaults, Committer, Publisher
from starrocks_emulator.transactions.frontend import Frontend, refresh_committed
from starrocks_emulator.transactions.labels import Operation
from starrocks_emulator.transactions.memory import FrontendMemory, scan_threads
from starrocks_emulator.transactions.messages import Request, Thrown, transaction_parameters

DATABASE = "shop"


OPEN = Opening()


class HandClock:
    """A clock that stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class Record:
    txn_id: int
    label: str
    db: str
    state: str


@dataclass
class Counted:
    loaded: int
    filtered: int = 0
    unselected: int = 0
    bytes: int = 0
    log: str = ""


@dataclass
class MemoryStore:
    """Bodies are taken as they are; a table whose bodies are all empty rejects the commit."""

    spool_dir: Path
    records: list[Record] = field(default_factory=list)
    tables: dict[str, bytes] = field(default_factory=dict)
    ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    planned: list[Mapping[str, str]] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    dropped: set[str] = field(default_factory=set)

    def has_database(self, db: str) -> bool:
        return db in (DATABASE, "other")

    def has_table(self, db: str, table: str) -> bool:
        return self.has_database(db) and not table.startswith("missing") and table not in self.dropped

    def plan(self, db: str, table: str, headers: Mapping[str, str]) -> Any:
        if table.startswith("missing"):
            raise PlanRejected(f"Failed to find table {table} in db {db}", "com.starrocks.common.MetaNotFoundException")
        self.planned.append(headers)
        return table

    def judge(self, txn_id: int, label: str, plan: Any, paths: Sequence[Path]) -> Counted:  # noqa: ARG002
        size = sum(path.stat().st_size for path in paths)
        if not size:
            raise CommitRejected(plan, "No rows were imported from upstream")
        return Counted(1, bytes=size)

    def judge_ahead(self, _: Any, path: Path) -> None:
        assert path.exists()

    def drop_bodies(self, paths: Sequence[Path]) -> None:
        for path in paths:
            path.unlink(missing_ok=True)

    def commit(
        self,
        db: str,
        txn_id: int,
        label: str,
        loads: Sequence[tuple[Any, Sequence[Path]]],
        *,
        visible: bool = True,
        opening: Opening = OPEN,  # noqa: ARG002
    ) -> Mapping[str, Counted]:
        bodies = {table: b"".join(path.read_bytes() for path in paths) for table, paths in loads}
        for table, body in bodies.items():
            if not body:
                raise CommitRejected(table, "No rows were imported from upstream")
        for table, body in bodies.items():
            self.tables[table] = self.tables.get(table, b"") + body
        self.records.append(Record(txn_id, label, db, "VISIBLE" if visible else "COMMITTED"))
        return {table: Counted(1, bytes=len(body)) for table, body in bodies.items()}

    def publish(self, txn_id: int, apart: float | None = None) -> None:  # noqa: ARG002
        for record in self.records:
            if record.txn_id == txn_id:
                record.state = "VISIBLE"

    def transactions(self) -> Sequence[Record]:
        return list(self.records)

    def forget(self, label: str) -> None:
        self.forgotten.append(label)
        self.records = [record for record in self.records if record.label != label]

    def next_txn_id(self) -> int:
        return next(self.ids)


class BytesBody:
    """A request body that is all there."""

    def __init__(self, data: bytes) -> None:
        self.length: int | None = len(data)
        self._data = data

    def readinto(self, view: memoryview) -> int:
        piece, self._data = self._data[: len(view)], self._data[len(view) :]
        view[: len(piece)] = piece
        return len(piece)


class Stage:
    """A frontend, a backend and a clock; every reply is the `Status`, `Message`, … object."""

    def __init__(self, spool_dir: Path, generation: Generation = Generation.B, limits: Limits | None = None) -> None:
        self.clock = HandClock()
        self.store = MemoryStore(spool_dir)
        self.settings = Settings(generation, limits=limits or Limits())
        self.start()

    def start(self) -> None:
        """What a new process would do over the same store."""
        self.memory = FrontendMemory(self.settings, self.store, self.clock)
        names = body_names()
        self.backends = [
            Backend(self.store, self.settings.limits, names, scan_threads(self.memory, self.settings.cores))
            for _ in range(2)
        ]
        self.frontend = Frontend(self.memory, self.backends)
        self.publisher = Publisher(self._publish)
        self.committer = Committer(self.memory, self.publisher)

    def _publish(self, txn_id: int) -> None:
        self.store.publish(txn_id)
        refresh_committed(self.memory)

    def request(self, label: str, **headers: str) -> Request:
        all_headers = {"db": DATABASE, "label": label, "transaction_type": "multi", **headers}
        return Request("PUT", "/api/transaction/load", all_headers)

    def begin(self, label: str, **headers: str) -> Mapping[str, Any]:
        return self._caught(lambda: self.frontend.begin(transaction_parameters(self.request(label, **headers))))

    def load(self, label: str, table: str, data: bytes = b"row", **headers: str) -> Mapping[str, Any]:
        request = self.request(label, table=table, **headers)

        def both() -> Mapping[str, Any]:
            answer = self.frontend.load(transaction_parameters(request), request)
            return answer.load(request, BytesBody(data)) if isinstance(answer, Backend) else answer

        return self._caught(both)

    def commit(self, label: str, **faults: Any) -> Mapping[str, Any]:
        parameters = transaction_parameters(self.request(label))
        return self._caught(lambda: self.committer.commit(parameters, CommitFaults(**faults)))

    def rollback(self, label: str) -> Mapping[str, Any]:
        return self._caught(lambda: self.frontend.rollback(transaction_parameters(self.request(label))))

    def state(self, label: str, database: str = DATABASE) -> str:
        return str(self.frontend.load_state(database, label)["state"])

    def committed(self, label: str, table: str = "t") -> None:
        assert self.begin(label)["Status"] == "OK"
        assert self.load(label, table)["Status"] == "OK"
        assert self.commit(label)["Status"] == "OK"

    def do(self, operation: Operation, label: str) -> Mapping[str, Any]:
        match operation:
            case Operation.BEGIN:
                return self.begin(label)
            case Operation.LOAD:
                return self.load(label, "t")
            case Operation.COMMIT:
                return self.commit(label)
            case Operation.ROLLBACK:
                return self.rollback(label)
        raise AssertionError(operation)

    @staticmethod
    def _caught(call: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        try:
            return call()
        except Thrown as error:
            return {"Status": "FAILED", "Message": error.text}
