"""The state operators: rules of one key over micro-batches, and the same over a batch frame.

Keys share 64 buckets; a bucket is a group of the state operator, a key an entry of its map. So a micro-batch costs two
state calls a key, and not a group a key. State that has outlived `state_ttl` counts as absent at once and is swept out
when its bucket next has rows, at most twice a `state_ttl`.
"""

# ruff: noqa: N802, N803, ARG002 - the names of methods and arguments are Spark's
from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final

import orjson
import pandas as pd
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from starrocks_txn_sink.changelog.keyed import Arrived, KeyRule, KeyStep, Left
from starrocks_txn_sink.changelog.reorder import Released, Timed, release
from starrocks_txn_sink.changelog.retention import Retention
from starrocks_txn_sink.changelog.state_text import read, written
from starrocks_txn_sink.clock import Clock
from starrocks_txn_sink.logs import get_logger

BUCKETS: Final = 64
KEY, TIE, ARRIVAL = "key", "tie", "arrival"
LEFT_COLUMNS: Final = [*Left._fields, "counts"]
LEFT_SCHEMA: Final = "kind string, row string, before string, extra string, counts string"
TIMED_COLUMNS: Final = ["row", "counts"]
TIMED_SCHEMA: Final = "row string, counts string"

_log = get_logger("changelog")

ROWS_A_BATCH: Final = 10_000

Entry = tuple[str, tuple[Any, ...], Arrived]  # key, order within the key, the change
Out = tuple[str | None, ...]  # a row of LEFT_COLUMNS


def entries(columns: dict[str, Sequence[Any]], orders: int) -> list[Entry]:
    """The changes in columns, sorted by key and order."""
    order = [columns[f"order_{number}"] for number in range(orders)]
    places = zip(*order, columns[TIE], columns[ARRIVAL], strict=True)
    changes = map(Arrived, *(columns[name] for name in Arrived._fields))
    return sorted(zip(columns[KEY], places, changes, strict=True), key=lambda entry: entry[:2])


def lists(frame: pd.DataFrame) -> dict[str, Sequence[Any]]:
    """A pandas frame's columns as lists of Python values; every way to say NULL becomes None."""
    return {
        str(name): [
            None if null else value for value, null in zip(frame[name].tolist(), frame[name].isna(), strict=True)
        ]
        for name in frame.columns
    }


def number(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches with a column of ascending numbers, those of a task above those of the tasks before it."""
    task = TaskContext.get()
    start = (task.partitionId() if task else 0) << 40
    for batch in batches:
        numbers = pa.array(range(start, start + batch.num_rows), pa.int64())
        start += batch.num_rows
        yield batch.append_column(ARRIVAL, numbers)


def by_key(sorted_entries: Iterable[Entry]) -> Iterator[tuple[str, list[Arrived]]]:
    for key, group in groupby(sorted_entries, key=lambda entry: entry[0]):
        yield key, [change for _, _, change in group]


def outgoing(step: KeyStep) -> list[Out]:
    """The rows of a step, and one that only holds its counts; says in the log, without the key, what was swallowed."""
    rows: list[Out] = [(*left, None) for left in step.left]
    if step.swallowed:
        _log.info("retractions.swallowed", count=step.swallowed, hint="if state_ttl is set, it may be too short")
        rows.append((None, None, None, None, orjson.dumps({"swallowed": step.swallowed}).decode()))
    return rows


class KeyProcessor(StatefulProcessor):
    """Runs a rule for every key of a bucket; the state of a key is an entry of a MapState."""

    def __init__(self, rule: KeyRule, orders: int, retention: Retention, clock: Clock) -> None:
        self._rule = rule
        self._orders = orders
        self._retention = retention
        self._clock = clock

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._states = handle.getMapState("states", "key string", "state string")
        self._swept = handle.getValueState("swept", "at double")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[pd.DataFrame]:
        now = self._clock.wall()
        arrived = [entry for frame in rows for entry in entries(lists(frame), self._orders)]
        arrived.sort(key=lambda entry: entry[:2])
        left = [row for name, changes in by_key(arrived) for row in outgoing(self._step(name, changes, now))]
        self._sweep(now)
        yield pd.DataFrame(left, columns=LEFT_COLUMNS, dtype=object)

    def close(self) -> None:
        """Nothing is held outside the state store."""

    def _step(self, key: str, changes: Sequence[Arrived], now: float) -> KeyStep:
        stored = self._states.getValue((key,))
        before = read(stored[0] if stored else None, self._retention, now)
        step = self._rule.step(before, changes)
        if step.touched and step.state is not None:
            self._states.updateValue((key,), (written(step.state, now),))
        elif stored and step.state is None:
            self._states.removeKey((key,))
        return step

    def _sweep(self, now: float) -> None:
        if self._retention.seconds <= 0:
            return
        swept = self._swept.get()
        if swept is None:
            self._swept.update((now,))
        elif now >= swept[0] + self._retention.seconds / 2:
            gone = [key for key, state in self._states.iterator() if read(state[0], self._retention, now) is None]
            for key in gone:
                self._states.removeKey(key)
            self._swept.update((now,))


class KeySweep:
    """The same rule over a batch frame that is partitioned and sorted by key: state lives as long as a key's rows."""

    def __init__(self, rule: KeyRule, orders: int) -> None:
        self._rule = rule
        self._orders = orders

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows: list[Out] = []
        for _, changes in by_key(self._arrived(batches)):
            rows += outgoing(self._rule.step(None, changes))
            if len(rows) >= ROWS_A_BATCH:
                yield _record_batch(rows)
                rows = []
        if rows:
            yield _record_batch(rows)

    def _arrived(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Entry]:
        for batch in batches:
            yield from entries({name: batch[name].to_pylist() for name in batch.schema.names}, self._orders)


def _record_batch(rows: list[Out]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.string()) for values in zip(*rows, strict=True)], LEFT_COLUMNS)


def timed(columns: dict[str, Sequence[Any]], orders: int) -> Iterator[tuple[int, Timed]]:
    """The rows in columns with their event time, each after its place of arrival."""
    order = [columns[f"order_{number}"] for number in range(orders)]
    places = zip(*order, strict=True) if order else ((),) * len(columns["row"])
    for arrival, time, place, row in zip(columns[ARRIVAL], columns["time"], places, columns["row"], strict=True):
        yield arrival, Timed(time, tuple(place), row)


def released(held: list[Timed], arrived: list[Timed], watermark: int) -> tuple[Released, pd.DataFrame]:
    """What the watermark (milliseconds) releases, and as rows of TIMED_COLUMNS, with the count of late rows."""
    done = release(held, arrived, watermark * 1000 if watermark > 0 else None)
    rows: list[Out] = [(each.row, None) for each in done.rows]
    if done.late:
        rows.append((None, orjson.dumps({"late": done.late}).decode()))
    return done, pd.DataFrame(rows, columns=TIMED_COLUMNS, dtype=object)


def wake_at(held: Sequence[Timed]) -> int:
    """The watermark (milliseconds) at which the earliest row is due."""
    return math.ceil(min(each.time for each in held) / 1000)


class Reorderer(StatefulProcessor):
    """Holds the rows of a bucket until the watermark has passed them; one timer wakes it for the earliest of them."""

    def __init__(self, orders: int) -> None:
        self._orders = orders

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._held = handle.getListState("held", "time bigint, place string, row string")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[pd.DataFrame]:
        arrived = [row for frame in rows for row in timed(lists(frame), self._orders)]
        arrived.sort(key=lambda pair: pair[0])
        return self._release([timed for _, timed in arrived], timerValues)

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[pd.DataFrame]:
        return self._release([], timerValues)

    def close(self) -> None:
        """Nothing is held outside the state store."""

    def _release(self, arrived: list[Timed], timers: TimerValues) -> Iterator[pd.DataFrame]:
        held = [Timed(time, tuple(orjson.loads(place)), row) for time, place, row in self._held.get()]
        done, frame = released(held, arrived, timers.getCurrentWatermarkInMs())
        self._hold(held, done.held)
        yield frame

    def _hold(self, before: list[Timed], now: list[Timed]) -> None:
        """Write what changed: most micro-batches only append."""
        if now[: len(before)] == before:
            for each in now[len(before) :]:
                self._held.appendValue(_stored(each))
        elif now:
            self._held.put([_stored(each) for each in now])
        else:
            self._held.clear()
        due = {wake_at(now)} if now else set()
        known = set(self._handle.listTimers())
        for timer in known - due:
            self._handle.deleteTimer(timer)
        for timer in due - known:
            self._handle.registerTimer(timer)


def _stored(each: Timed) -> tuple[int, str, str]:
    return each.time, orjson.dumps(each.place).decode(), each.row
