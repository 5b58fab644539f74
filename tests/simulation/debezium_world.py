"""Schedules in which the lanes take Debezium's messages: as whole source transactions, or change by change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from starrocks_txn_sink import DebeziumAssembly
from starrocks_txn_sink.assembler.rules.payload import PayloadEncoder
from starrocks_txn_sink.errors import SourceChanged
from starrocks_txn_sink.rows.arrival import SMALL_ROWS
from starrocks_txn_sink.sink.events_writer import EventRounds
from starrocks_txn_sink.sources.formats.raw_format import RawFormat
from starrocks_txn_sink.sources.kafka.ranges import OffsetRanges
from starrocks_txn_sink.sources.kafka.spark_reader import PlannedRanges
from starrocks_txn_sink.writer.assembling import AssemblySpec, LaneAssembler
from starrocks_txn_sink.writer.task import LaneTask
from starrocks_txn_sink.writer.worker import Attempt

from .assembling_driver import AssemblingDriver, Counter
from .assembling_world import AssemblingWorld
from .debezium_log import DebeziumSource, Follow, debezium_source, message_batches, read_batches
from .driver import DATABASE, Checkpoint, Driver
from .event_log import EventSource
from .source import Cut, Source
from .trace import Say
from .world import History

FOLLOW: dict[int, Follow] = {5: "set_back", 7: "taken_over", 11: "set_back"}
"""What follows in the end, by the seed's rest of twelve."""
WHOLE, NONE = DebeziumAssembly(reader="spark"), DebeziumAssembly(reader="spark", transactions="none")


class DebeziumWorld(AssemblingWorld):
    """In every second schedule source transactions are whole.

    Then all drivers on a checkpoint share Spark's log: a state belongs to what it says was read. Of TxnEvents a BEGIN
    would be missing in another one's state, and of Debezium's transactions nothing says so: they would never add up.

    In every third of these the database is set back in the end. A driver that meets this ends, and the next one has
    what the error says. Nothing of either source is lost then, or there twice. In every sixth of these another server
    takes over.
    """

    def _events_of(self, source: Source) -> EventSource:
        self.assembly = WHOLE if self.seed % 2 else NONE
        return debezium_source(source.truth, self.rng, whole=self.seed % 2 == 1, follow=FOLLOW.get(self.seed % 12, ""))

    def _shares_logs(self) -> bool:
        return self.assembly.transactions == "whole" or self.seed // 2 % 2 == 0

    def _judge_error(self, driver: Driver, error: BaseException) -> None:
        name = error.context.get("new_source") if isinstance(error, SourceChanged) else None
        if name not in self.further:
            super()._judge_error(driver, error)
            return
        self.events += 1
        self.assembly = replace(self.assembly, new_sources=(*self.assembly.new_sources, str(name)))

    @property
    def further(self) -> set[str]:
        """The names of the sources that follow others."""
        return {name for transactions in self.source.truth if "@" in (name := transactions[0].partition)}

    def _make_driver(self, *arguments: Any, **keywords: Any) -> AssemblingDriver:
        return DebeziumDriver(self, *arguments, **keywords)

    def tells_otherwise(self) -> bool:
        """Nothing compares the content of what Debezium repeats beyond the last source transaction."""
        return False


class DebeziumDriver(AssemblingDriver):
    """Whole source transactions have one lane, which judges all messages of the micro-batch together."""

    _world: DebeziumWorld

    def __init__(self, world: DebeziumWorld, name: str, checkpoint: Checkpoint, lanes: int, oddity: str) -> None:
        self.rules = world.assembly
        self._whole = world.assembly.transactions == "whole"
        super().__init__(world, name, checkpoint, 1 if self._whole else lanes, oddity)
        if self._whole:
            self._plan.proves, self._plan.shuffle, self._plan.disordered = True, False, False

    def _cut_after(self, begin: Cut) -> Cut:
        """In every eighth schedule messages trickle in, so a source transaction is open over many micro-batches."""
        if self._world.seed % 8 != 1:
            return super()._cut_after(begin)
        number = self._world.rng.choice([number for number, end in enumerate(self._source.end) if begin[number] < end])
        return tuple(low + (place == number) for place, low in enumerate(begin))

    def _assembly(self, lines: RawFormat | None) -> AssemblySpec:
        del lines
        assert self._log is not None
        return AssemblySpec(
            self.rules.assembler, self.rules.policy, PayloadEncoder(DATABASE), 0.0,
            self._world.directory(self.checkpoint.name),
            self._log.stem(self._batch), self._before.partitions, self._before.inline, self.rules.lines,
        )  # fmt: skip

    def _rounds_of(self, lanes: list[OffsetRanges], assembly: AssemblySpec) -> EventRounds:
        return EventRounds(self._begin_round, assembly, PlannedRanges(lanes, Counter()), rereads=self._whole)

    def _overlap(self) -> int:
        """An offset comes in one micro-batch alone; only the state of whole source transactions would know it."""
        return super()._overlap() if self._whole else 0

    def _fed_lane(self, task: LaneTask, attempt: Attempt) -> tuple[LaneAssembler, list[pa.RecordBatch]]:
        rng, events = self._world.rng, self._events[attempt.lane]
        small = (self._whole or not task.ordered) and rng.random() < 0.5  # then the lane takes them in any order
        if small or task.ordered:  # a frame of files may have a message twice
            events = [again for event in events for again in [event] * rng.choice((1, 1, 1, 2))]
        events = rng.sample(events, len(events)) if small else events
        assembly = replace(self._assembly(None), arrival_order=not task.ordered, small_rows=SMALL_ROWS if small else 0)
        return assembly.open(attempt), message_batches(events, rng)

    def _acknowledge(self) -> None:
        assert isinstance(self._source_log, DebeziumSource)
        self._source_log.declared = self.rules.new_sources
        super()._acknowledge()

    def _read(self, ranges: OffsetRanges) -> list[pa.RecordBatch]:
        return read_batches(self._source_log, ranges, self._world.rng)


def run_debezium(seed: int, say: Say | None = None, name: int | None = None, *, ledger: bool = True) -> History:
    """Run the schedule of `seed`, whose history has the seed `name`."""
    return DebeziumWorld(seed, say, name, ledger=ledger).run()
