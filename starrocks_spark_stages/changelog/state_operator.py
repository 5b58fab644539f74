"""State operators over transformWithState: the rules of one key, and event-time order; the same over a batch frame.

Keys share 64 buckets: a bucket is a group of the operator, and its keys share pages (`key_store`). Expired state
counts as absent at once; a sweep removes it when its bucket next has rows, at most twice per `state_ttl`. Names and
schemas of states are part of a checkpoint: keep them.
"""

from __future__ import annotations  # Spark 3.5 lacks the types of transformWithState

import gc
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, groupby, islice
from typing import Any, Final

import orjson
import pandas as pd
import pyarrow as pa
from pyspark import TaskContext

from starrocks_spark_stages.assemble.keyed_state import COUNTS, keep_timer
from starrocks_spark_stages.changelog.key_store import Bucket, KeyStates
from starrocks_spark_stages.changelog.rules import keyed
from starrocks_spark_stages.changelog.rules.conversions import TimedRow, release
from starrocks_spark_stages.changelog.rules.keyed import InputChange, KeyRule, KeyStep, Retention
from starrocks_txn_sink.clock import Clock
from starrocks_txn_sink.spark_version import stateful_processor as spark
from starrocks_txn_sink.telemetry import get_logger

# ruff: noqa: N802, N803, ARG002 - the names of methods and arguments are Spark's


BUCKETS: Final = 64
KEY, ORDER, TIE, ARRIVAL = "key", "order_", "tie", "arrival"
OUTPUT_COLUMNS: Final = [*keyed.OutputChange._fields, COUNTS]
OUTPUT_SCHEMA: Final = "kind string, row string, before string, extra string, counts string"
TIMED_COLUMNS: Final = ["row", COUNTS]
TIMED_SCHEMA: Final = "row string, counts string"

_log = get_logger("changelog")
_SWALLOWED: Final = (
    "state_ttl may be too short, or a delete carries only its key and upsert_materializer has no upsert_key"
)

ROWS_PER_BATCH: Final = 10_000

Entry = tuple[str, tuple[Any, ...], InputChange]  # key, order within the key, change
OutputRow = tuple[str | None, ...]  # a row of OUTPUT_COLUMNS or TIMED_COLUMNS


def entries(columns: dict[str, Sequence[Any]]) -> Iterator[Entry]:
    """The changes in `columns`; the order within a key is `order_0`…, tie, arrival."""
    places = zip(*_sequence(columns), columns[TIE], columns[ARRIVAL], strict=True)
    changes = map(InputChange, *(columns[name] for name in InputChange._fields))
    return zip(columns[KEY], places, changes, strict=True)


def _sequence(columns: dict[str, Sequence[Any]]) -> list[Sequence[Any]]:
    return [values for name, values in columns.items() if name.startswith(ORDER)]


def sorted_entries(frames: Iterable[pd.DataFrame]) -> list[Entry]:
    """The changes in all `frames`, sorted by key and the order within the key."""
    pairs = (entry for frame in frames for entry in entries(column_lists(frame)))
    return sorted(pairs, key=lambda entry: entry[:2])


def column_lists(frame: pd.DataFrame) -> dict[str, Sequence[Any]]:
    """A pandas frame's columns as lists of Python values; pandas has several NULLs (NaN, NaT, NA), all become None."""
    return {
        str(name): [
            None if null else value for value, null in zip(frame[name].tolist(), frame[name].isna(), strict=True)
        ]
        for name in frame.columns
    }


def number_arrivals(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches with a column of ascending numbers; a task's numbers are above those of the tasks before it."""
    task = TaskContext.get()
    start = (task.partitionId() if task else 0) << 40  # room for 2^40 rows per task
    for batch in batches:
        numbers = pa.array(range(start, start + batch.num_rows), pa.int64())
        start += batch.num_rows
        yield pa.RecordBatch.from_arrays([*batch.columns, numbers], [*batch.schema.names, ARRIVAL])


def _changes_by_key(sorted_entries: Iterable[Entry]) -> Iterator[tuple[str, list[InputChange]]]:
    for key, group in groupby(sorted_entries, key=lambda entry: entry[0]):
        yield key, [change for _, _, change in group]


def output_rows(step: KeyStep) -> list[OutputRow]:
    """The rows of a step, then a row with only its counts. Logs swallowed and waiting retractions, without the key."""
    rows: list[OutputRow] = [(*change, None) for change in step.output]
    if step.swallowed:
        _log.info("retractions.swallowed", count=step.swallowed, hint=_SWALLOWED)
    if step.waiting > 0:
        _log.info("retractions.waiting", count=step.waiting)
    counts = {name: count for name, count in (("swallowed", step.swallowed), ("waiting", step.waiting)) if count}
    if counts:
        rows.append((None, None, None, None, orjson.dumps(counts).decode()))
    return rows


@contextmanager
def _collector_off() -> Iterator[None]:
    """Switch off garbage collection: it takes a third of the time, and no object here is part of a cycle."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@dataclass(eq=False)
class KeyProcessor(spark.StatefulProcessor):
    """Runs a rule for each key of a bucket."""

    rule: KeyRule
    retention: Retention
    clock: Clock

    def init(self, handle: spark.StatefulProcessorHandle) -> None:
        """Declare the state of a bucket, whose names and schemas are part of a checkpoint."""
        self._states = KeyStates(handle)
        self._swept = handle.getValueState("swept", "at double")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: spark.TimerValues) -> Iterator[pd.DataFrame]:
        """One frame with the output of all keys in `rows`; reads the wall clock once, for `state_ttl`."""
        with _collector_off():
            output = self._process(sorted_entries(rows), self.clock.wall())
        yield pd.DataFrame(output, columns=OUTPUT_COLUMNS, dtype=object)

    def _process(self, arrived: list[Entry], now: float) -> list[OutputRow]:
        """Run the rule for all keys of a bucket."""
        bucket = Bucket(self._states, self.retention, now)
        output: list[OutputRow] = []
        for name, changes in _changes_by_key(arrived):
            step = self.rule.step(bucket.state(name), changes)
            if step.state is None:
                bucket.remove(name)
            elif step.touched:
                bucket.keep(name, step.state)
            output += output_rows(step)
        if self._is_due(now):
            bucket.sweep()
        bucket.flush()
        return output

    def close(self) -> None:
        """Nothing to close: all state is in the state store."""

    def _is_due(self, now: float) -> bool:
        """Whether to sweep the bucket now."""
        if self.retention.seconds <= 0:
            return False
        swept = self._swept.get()
        due = swept is not None and now >= swept[0] + self.retention.seconds / 2
        if due or swept is None:
            self._swept.update((now,))
        return due


@dataclass(frozen=True, slots=True)
class BatchKeyProcessor:
    """Runs a rule over a batch frame that is partitioned by key and sorted, so no state outlives a key's rows."""

    rule: KeyRule

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        columns = ({name: batch[name].to_pylist() for name in batch.schema.names} for batch in batches)
        arrivals = chain.from_iterable(map(entries, columns))
        steps = (self.rule.step(None, changes) for _, changes in _changes_by_key(arrivals))
        rows = chain.from_iterable(map(output_rows, steps))
        while chunk := list(islice(rows, ROWS_PER_BATCH)):
            yield pa.record_batch(
                [pa.array(values, pa.string()) for values in zip(*chunk, strict=True)], OUTPUT_COLUMNS
            )


def timed_rows(columns: dict[str, Sequence[Any]]) -> Iterator[tuple[int, TimedRow]]:
    """Pairs (arrival, row with its event time) of the rows in `columns`."""
    values = zip(columns["time"], columns["row"], *_sequence(columns), columns[ARRIVAL], strict=True)
    for time, row, *place, arrival in values:
        yield arrival, TimedRow(time, tuple(place), row)


class Reorderer(spark.StatefulProcessor):
    """Holds the rows of a bucket until the watermark reaches them; one timer wakes it for the earliest row."""

    def init(self, handle: spark.StatefulProcessorHandle) -> None:
        """Declare the list of rows that wait, whose name and schema are part of a checkpoint."""
        self._handle = handle
        self._held = handle.getListState("held", "time bigint, place string, row string")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: spark.TimerValues) -> Iterator[pd.DataFrame]:
        """Hold the rows, in the order of their arrival, and release what the watermark has reached."""
        arrivals = [row for frame in rows for row in timed_rows(column_lists(frame))]
        arrivals.sort(key=lambda pair: pair[0])
        return self._release([row for _, row in arrivals], timerValues)

    def handleExpiredTimer(
        self, key: Any, timerValues: spark.TimerValues, expiredTimerInfo: spark.ExpiredTimerInfo
    ) -> Iterator[pd.DataFrame]:
        """Release what the watermark has reached; no row came."""
        return self._release([], timerValues)

    def close(self) -> None:
        """Nothing to close: all state is in the state store."""

    def _release(self, arrived: list[TimedRow], timers: spark.TimerValues) -> Iterator[pd.DataFrame]:
        held_rows = [TimedRow(time, tuple(orjson.loads(place)), row) for time, place, row in self._held.get()]
        watermark = timers.getCurrentWatermarkInMs()
        release_result = release(held_rows, arrived, watermark * 1000 if watermark > 0 else None)
        self._hold(held_rows, release_result.held)
        rows: list[OutputRow] = [(row.row, None) for row in release_result.rows]
        if release_result.late:
            rows.append((None, orjson.dumps({"late": release_result.late}).decode()))
        yield pd.DataFrame(rows, columns=TIMED_COLUMNS, dtype=object)

    def _hold(self, before: list[TimedRow], now: list[TimedRow]) -> None:
        """Write the difference only: most micro-batches append rows and change no other."""
        if now[: len(before)] == before:
            for new in now[len(before) :]:
                self._held.appendValue(_state_row(new))
        elif now:
            self._held.put([_state_row(row) for row in now])
        else:
            self._held.clear()
        # The timer is the watermark (milliseconds) that releases the earliest row.
        keep_timer(self._handle, math.ceil(min(row.time for row in now) / 1000) if now else None)


def _state_row(row: TimedRow) -> tuple[int, str, str]:
    return row.time, orjson.dumps(row.place).decode(), row.row
