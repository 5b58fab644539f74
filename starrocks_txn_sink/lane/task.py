"""The lane as a Spark task: Arrow batches in, receipts out. The adapter between `mapInArrow` and the lane's runner."""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa

from starrocks_txn_sink import logs
from starrocks_txn_sink.clock import Clock, Deadline, SystemClock
from starrocks_txn_sink.lane.actions import RECYCLE_AT, Identity, Limits
from starrocks_txn_sink.lane.attempt import Attempt, with_stage
from starrocks_txn_sink.lane.authority import Authority, first_owner, labels_of
from starrocks_txn_sink.lane.compacted import Compacted
from starrocks_txn_sink.lane.coordinator import LedgerEntries, SharedTransactionCoordinator
from starrocks_txn_sink.lane.ending import until_end
from starrocks_txn_sink.lane.equipment import Equipment, discard, equip
from starrocks_txn_sink.lane.figures import LaneFigures
from starrocks_txn_sink.lane.log_entries import log_entries
from starrocks_txn_sink.lane.perform import Performer
from starrocks_txn_sink.lane.quarantine import Quarantine
from starrocks_txn_sink.lane.receipt import Receipt
from starrocks_txn_sink.lane.replay import Replay
from starrocks_txn_sink.lane.runner import LaneRunner
from starrocks_txn_sink.lane.segments import POSITION, Segment, Segmenter
from starrocks_txn_sink.lane.step_log import told
from starrocks_txn_sink.lane.unit import HASH, unit_of
from starrocks_txn_sink.lane.worker import spare_loaded
from starrocks_txn_sink.ledger.take_over import fresh_tokens
from starrocks_txn_sink.ledger.values import Position
from starrocks_txn_sink.options import Compression, SinkOptions
from starrocks_txn_sink.transaction.label import Patience
from starrocks_txn_sink.transaction.names import labels, run_of
from starrocks_txn_sink.transaction.steps import run

RECEIPT_SCHEMA = "receipt string"
ReadRows = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]
_RECEIPTS = pa.schema([pa.field("receipt", pa.string())])


@dataclass(frozen=True, slots=True)
class Mandate:
    """What the driver gives its lanes after it took the job over: its token, and the positions it knows."""

    driver_token: str
    positions: Mapping[str, Position] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LaneTask:
    """What a lane needs to know of its micro-batch; ships to executors and runs there, once a Spark task.

    `marked` tells whether rows carry positions and transaction ends; without them a lane's rows are one unit. In a
    `streaming` query positions may not go back from one micro-batch to the next. Without a `mandate` there is no
    ledger: delivery is at-least-once. With `at_end_only` nothing is committed before the lane's last row was seen.
    `logging` is how the driver that made it logs.
    """

    options: SinkOptions
    job: str
    epoch: str
    checkpoint: str
    batch_id: int
    marked: bool = True
    streaming: bool = True
    mandate: Mandate | None = None
    at_end_only: bool = False
    logging: logs.LogSettings | None = field(default_factory=logs.executor_log_settings)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows of `batches`; yields rows of RECEIPT_SCHEMA: each receipt, then the lane's report."""
        yield lines_batch(self.lines(batches, Attempt.current(), SystemClock()))

    def lines(
        self, batches: Iterable[pa.RecordBatch], attempt: Attempt, clock: Clock, rows: ReadRows | None = None
    ) -> list[str]:
        """Run the lane to its end; each receipt, then the lane's report, as JSON."""
        figures = self._figures(attempt, clock)
        receipts = self.write(batches, attempt, clock, figures, rows)
        return [*(receipt.to_json() for receipt in receipts), figures.report(receipts).to_json()]

    def write(
        self,
        batches: Iterable[pa.RecordBatch],
        attempt: Attempt,
        clock: Clock,
        figures: LaneFigures | None = None,
        rows: ReadRows | None = None,
    ) -> list[Receipt]:
        """Run the lane to its end; raises its first error, after its label was rolled back; a note has the report.

        `rows` makes marked rows of `batches`, until the lane's end; without it they are marked rows already.
        """
        spare_loaded()
        logs.apply_log_settings(self.logging)
        figures = figures or self._figures(attempt, clock)
        equipment = equip(self.options)
        try:
            return figures.detailed(self._write(batches, attempt, clock, equipment, figures, rows))
        except BaseException as error:
            with contextlib.suppress(Exception):  # the error itself counts
                error.add_note(figures.report((), error).note())
            discard(self.options)  # a connection or a thread may be stuck: start the next batch with new ones
            raise

    def _figures(self, attempt: Attempt, clock: Clock) -> LaneFigures:
        encoding = Compression(self.options.compression).value
        return LaneFigures(self.job, attempt.lane, self.batch_id, encoding, clock)

    def _write(
        self,
        batches: Iterable[pa.RecordBatch],
        attempt: Attempt,
        clock: Clock,
        equipment: Equipment,
        figures: LaneFigures,
        rows: ReadRows | None,
    ) -> list[Receipt]:
        deadline, rng = Deadline.after(self.options.batch_deadline, clock), random.Random()
        if self.mandate is not None:
            attempt, batches = with_stage(attempt, batches)
        transport = figures.transport(equipment.transport)
        authority = self._authority(attempt, rng, clock)
        positions: Mapping[str, Position] = self.mandate.positions if self.mandate else {}
        if attempt.retry:
            figures.retried()
        if authority is not None and attempt.retry:
            taken = run(authority.take_over(rng), transport, clock, deadline, equipment.ledger)
            positions = taken.positions
        core = SharedTransactionCoordinator(
            Identity(self.job, attempt.lane, self.batch_id),
            limits(self.options, at_end_only=self.at_end_only),
            labels(self.job, self.epoch, attempt.lane, self.batch_id, attempt.number),
            rng,
            clock.wall,
            authority.entries if authority is not None else None,
            self._log(attempt.lane, clock),
            self._quarantine(clock),
        )
        performer = Performer(
            self.options,
            transport,
            clock,
            deadline,
            rng,
            Patience(commit_again=authority is None),
            authority=authority,
            ledger=equipment.ledger,
            query=equipment.connection.query if equipment.connection is not None else None,
        )
        figures.watch(core)
        compacted = Compacted()
        segments = compacted.counted(self._segments(batches, attempt.lane, positions, figures, rows))
        lines = logs.EventLogger("lane", job=self.job, batch=self.batch_id, lane=attempt.lane)
        performing = figures.performing(told(performer, lines, clock))
        runner = LaneRunner(core, performing, equipment.crew, clock, deadline)
        receipts = compacted.noted(runner.run(segments))
        return [replace(receipt, filtered=performer.filtered.get(receipt.label, {})) for receipt in receipts]

    def _log(self, lane: int, clock: Clock) -> LedgerEntries | None:
        if not self.options.receipts_log:
            return None
        return log_entries(self.job, lane, self.batch_id, partial(_now_text, clock))

    def _authority(self, attempt: Attempt, rng: random.Random, clock: Clock) -> Authority | None:
        if self.mandate is None:
            return None
        return Authority(
            self.job,
            self.options.database,
            self.mandate.driver_token,
            first_owner(self.epoch, self.checkpoint, self.batch_id, attempt.lane),
            fresh_tokens(self.epoch, attempt.number, rng),
            partial(_now_text, clock),
            labels_of(self.mandate.positions),
        )

    def _quarantine(self, clock: Clock) -> Quarantine | None:
        if not self.options.quarantines:
            return None
        columns = partial(_columns_header, self.options)
        return Quarantine(
            self.job, self.batch_id, self.options.max_quarantined, partial(_now_text, clock), columns=columns
        )

    def _segments(
        self,
        batches: Iterable[pa.RecordBatch],
        lane: int,
        positions: Mapping[str, Position],
        figures: LaneFigures | None = None,
        rows: ReadRows | None = None,
    ) -> Iterator[Segment]:
        reading = figures.reading if figures is not None else _unwatched
        compare = self.options.check_replays
        if self.marked:
            epoch = run_of(self.epoch) if self.streaming else ""
            replay = Replay(positions, compare, epoch, self.batch_id)
            segmenter = Segmenter(replay, marking=self.options.quarantines)
            marked = rows(batches) if rows is not None else until_end(batches, POSITION)
            for batch in reading(marked, replay):
                yield from segmenter.split(batch)
            return
        unit = unit_of(self.checkpoint, lane, self.options.lanes, self.batch_id, positions, compare)
        for batch in reading(until_end(batches, HASH), None):
            yield from unit.split(batch)
        yield from unit.end()


def _now_text(clock: Clock) -> str:
    """The time as a DATETIME literal, for people who look at the sink's tables."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(clock.wall()))


def _columns_header(options: SinkOptions, table: str) -> str:
    return options.load_headers(table).get("columns", "")


def _unwatched(batches: Iterable[pa.RecordBatch], _: Replay | None) -> Iterable[pa.RecordBatch]:
    return batches


def lines_batch(lines: list[str]) -> pa.RecordBatch:
    """A batch of RECEIPT_SCHEMA."""
    return pa.RecordBatch.from_arrays([pa.array(lines)], schema=_RECEIPTS)


def limits(options: SinkOptions, *, at_end_only: bool = False) -> Limits:
    """The coordinator's limits. With one lane a micro-batch is one StarRocks transaction: no commit inside it.

    With `compact` never, not even at the recycle point: a row that was left out and the row that replaces it become
    visible together, or a reader could see the former one's source transaction without it. Nor with `at_end_only`.
    With a quarantine a work is committed before it is too large to be taken apart.
    """
    whole = options.compact or at_end_only
    return Limits(
        commit_interval=options.commit_interval if options.lanes > 1 and not whole else None,
        mini_interval=options.mini_interval,
        timeout=options.timeout,
        buffer_bytes=options.buffer_bytes,
        chunk_bytes=options.chunk_bytes,
        load_bytes=options.load_bytes,
        retry_buffer_bytes=options.retry_buffer_bytes,
        load_parallelism=options.load_parallelism,
        max_attempts=options.max_attempts,
        recycle_at=math.inf if whole else RECYCLE_AT,
        seal_bytes=options.retry_buffer_bytes // 2 if options.quarantines and not whole else None,
    )
