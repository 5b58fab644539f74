"""What the driver publishes after the lanes of a micro-batch of events have returned, and who may."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import types as T

from starrocks_txn_sink import SinkOptions, TransactionAssembly
from starrocks_txn_sink.assembler.rules.model import AssemblerState, OpenTransaction
from starrocks_txn_sink.assembler.rules.spill import CarriedState
from starrocks_txn_sink.clock import SystemClock
from starrocks_txn_sink.coordinator.model import ColumnNeeds, Receipt
from starrocks_txn_sink.errors import Fenced
from starrocks_txn_sink.sink import events_state
from starrocks_txn_sink.sink.batch_events import BatchOrigin
from starrocks_txn_sink.sink.events_state import EventsState, Opening
from starrocks_txn_sink.sink.events_writer import EventsWriter
from starrocks_txn_sink.sink.lanes import Written
from starrocks_txn_sink.sink.manifest_log import ManifestLog
from starrocks_txn_sink.sink.session import Session
from starrocks_txn_sink.sources.kafka.spark_reader import ReadToEnd
from starrocks_txn_sink.telemetry import Event, ignore_event
from starrocks_txn_sink.writer.messages import CarryOver
from starrocks_txn_sink.writer.task import LaneTask
from tests.support.memory_directory import MemoryDirectory

OPTIONS = SinkOptions(load_url="http://fe:8030", query_url="mysql://fe:9030", database="shop", job="job")


def source(batch: int) -> Any:
    """A micro-batch of a query that Spark hides."""
    origin = BatchOrigin(batch, "job", "checkpoint", "run", streaming=True)
    return SimpleNamespace(spark=None, schema=T.StructType(), origin=origin)


def writer(
    directory: MemoryDirectory,
    monkeypatch: pytest.MonkeyPatch,
    receipts: list[Receipt],
    assembly: TransactionAssembly | None = None,
    epoch: str = "epoch",
) -> EventsWriter:
    """A writer whose lanes leave a source transaction open, and send `receipts`."""

    def run_once(*_: object) -> None:
        raise Fenced("The job was taken over by another writer.")

    session = Session("run", "job", "epoch", "checkpoint", token="mine")
    terms: Any = None
    monkeypatch.setattr(events_state, "run_once", run_once)
    monkeypatch.setattr(EventsWriter, "_lanes", lambda *_: Written(receipts, [], [CarryOver()]))
    assembly = TransactionAssembly() if assembly is None else assembly
    return EventsWriter(
        assembly, session, terms, EventsState(assembly, session, ManifestLog.open(directory, epoch, "q", 3))
    )


def test_a_run_that_lost_its_job_publishes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the micro-batch was committed, so no lane has noticed."""
    directory = MemoryDirectory()
    events = writer(directory, monkeypatch, [])
    task = events.session.lane_task(OPTIONS, 0)
    with pytest.raises(Fenced):
        events.write(source(0), task, ignore_event, lambda *_: None)
    assert directory.names("batches") == []


def test_a_commit_has_checked_the_owner_already(monkeypatch: pytest.MonkeyPatch) -> None:
    directory = MemoryDirectory()
    receipt = Receipt("l", None, "job", 0, (), (), 1, 1, 0, recycled=False)
    events = writer(directory, monkeypatch, [receipt])
    events.write(source(0), events.session.lane_task(OPTIONS, 0), ignore_event, lambda *_: None)
    assert directory.names("batches") == ["000000000000-000001-epoch.json"]


def test_the_types_of_rows_that_wait_are_those_of_all_micro_batches_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their messages are not read again, and a column that the table lacks by then gets its type from them alone."""
    directory, opened = MemoryDirectory(), list[Opening]()
    needs = {"orders": {name: ColumnNeeds(types=("BIGINT",)) for name in ("a", "b")}}
    waits = CarriedState(AssemblerState(1, (OpenTransaction("t", 1, 0.0),)))

    def lanes(_: EventsWriter, _source: Any, task: LaneTask, opening: Opening, *__: object) -> Written:
        opened.append(opening)
        described = [{"orders": {name: needs["orders"][name]}} for name in "ab"][task.batch_id : task.batch_id + 1]
        receipt = Receipt("l", None, "job", task.batch_id, (), (), 1, 1, 0, recycled=False)
        return Written([receipt], [], [CarryOver({"p": waits}, described=described[0] if described else {})])

    events = writer(directory, monkeypatch, [])
    monkeypatch.setattr(EventsWriter, "_lanes", lanes)
    for batch in range(4):
        events.write(source(batch), events.session.lane_task(OPTIONS, batch), ignore_event, lambda *_: None)
    assert [opening.before.described for opening in opened[2:]] == [needs, needs]


LIMIT = 60.0


@dataclass
class Runs:
    """Runs of a query with `open_timeout`, and a source transaction that is open since second 0 of the first one."""

    directory: MemoryDirectory
    monkeypatch: pytest.MonkeyPatch
    events: EventsWriter | None = None
    reached: bool = True
    pauses: bool = False
    fails: bool = False
    judged: list[tuple[float, float | None]] = field(default_factory=list)  # time and open_timeout of each try
    told: list[Event] = field(default_factory=list)

    def start(self, epoch: str) -> None:
        assembly = TransactionAssembly(open_timeout=LIMIT, on_open_timeout="drop")
        events = writer(self.directory, self.monkeypatch, [], assembly, epoch)
        self.monkeypatch.setattr(ReadToEnd, "is_reached", lambda *_: self.reached)
        self.monkeypatch.setattr(events_state, "counts_pauses", lambda *_: self.pauses)
        self.monkeypatch.setattr(EventsWriter, "_lanes", self._lanes)
        self.events = events

    def _lanes(self, _source: Any, task: LaneTask, opening: Opening, *_: object) -> Written:
        assert opening.policy is not None
        self.judged.append((opening.now, opening.policy.open_timeout))
        if self.fails:
            raise ConnectionError
        state = CarriedState(AssemblerState(1, (OpenTransaction("t", 1, opening.now),)))
        carried = CarryOver({"p": state}) if task.batch_id == 0 else CarryOver()
        return Written([Receipt("l", None, "job", 0, (), (), 1, 1, 0, recycled=False)], [], [carried])

    def write(self, batch: int, time: float, wall: float | None = None) -> None:
        """A micro-batch that Spark planned at `time`; it runs at `wall`, which is later where it runs again."""
        assert self.events is not None
        self.monkeypatch.setattr(events_state, "batch_time", lambda *_: time)
        self.monkeypatch.setattr(SystemClock, "wall", lambda _: time if wall is None else wall)
        task = self.events.session.lane_task(OPTIONS, batch)
        self.events.write(source(batch), task, self.told.append, lambda *_: None)

    @property
    def given_up(self) -> bool:
        return any(event.name == "transaction.timed_out" for event in self.told)

    @property
    def since(self) -> float:
        return float(self.told[-1].fields["counts"]["oldest_open"])


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    runs = Runs(MemoryDirectory(), monkeypatch)
    runs.start("e1")
    runs.write(0, 1000.0)
    return runs


def test_open_timeout_does_not_count_the_time_that_the_query_was_down(runs: Runs) -> None:
    runs.write(1, 1030.0)
    runs.start("e2")
    runs.write(2, 9000.0)
    assert (runs.judged[-1], runs.given_up, runs.since) == ((1030.0, LIMIT), False, 8970.0)
    runs.write(3, 9029.0)
    assert not runs.given_up
    runs.write(4, 9030.0)
    assert runs.given_up


def test_the_pause_behind_a_micro_batch_that_runs_again_does_not_count(runs: Runs) -> None:
    """Spark gives it the time of its first run, which died in it."""
    runs.start("e2")
    runs.write(1, 1010.0, wall=9000.0)
    runs.write(2, 9001.0)
    assert (runs.judged[-1], runs.given_up) == ((1001.0, LIMIT), False)
    runs.write(3, 9060.0)
    assert runs.given_up


def test_nothing_is_given_up_before_the_source_is_read_to_its_end(runs: Runs) -> None:
    runs.reached = False
    runs.write(1, 1100.0)
    assert (runs.judged[-1], runs.given_up) == ((1100.0, None), False)
    runs.reached = True
    runs.write(2, 1101.0)
    assert (runs.judged[-1], runs.given_up) == ((1101.0, LIMIT), True)


def test_the_time_between_runs_that_end_by_themselves_counts(runs: Runs) -> None:
    runs.pauses = True
    runs.start("e2")
    runs.write(1, 1060.0)
    assert runs.given_up


def test_a_micro_batch_that_runs_again_gives_up_what_its_first_run_has(runs: Runs) -> None:
    """Dead letters may be visible already, and are known by their number."""
    runs.fails = True
    with pytest.raises(ConnectionError):
        runs.write(1, 1061.0)
    runs.fails, runs.reached = False, False
    runs.start("e2")
    runs.write(1, 1061.0)
    assert runs.judged[-2:] == [(1061.0, LIMIT)] * 2
    assert runs.given_up
