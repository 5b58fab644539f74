"""The two state operators: where the assembler's header and blobs live between micro-batches.

Both take packed events (packing.pack) of one source partition and yield packed rows and a receipt. They behave alike;
they differ in what a long open transaction costs. `Processor` (transformWithState, RocksDB) writes each blob once,
under a key of its own. `group_function` (applyInPandasWithState, any provider) has a single state value: Spark writes
it anew, all blobs included, whenever the source partition has events.
"""

# ruff: noqa: N802, N803, ARG002 - the names of methods and arguments are Spark's
from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import orjson
import pandas as pd
import pyarrow as pa
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from starrocks_txn_sink.assembler import schema
from starrocks_txn_sink.assembler.packing import BLOB, COUNTS, Packet, Partition, packets, receipt
from starrocks_txn_sink.assembler.policy import Policy
from starrocks_txn_sink.assembler.rules import Assembler, Step
from starrocks_txn_sink.assembler.state import AssemblerState, from_blob, to_blob
from starrocks_txn_sink.events import Event
from starrocks_txn_sink.logs import get_logger

# Spark cannot bring arrays in this state to Python, so all blobs share one binary value, cut by `layout`: JSON pairs of
# blob number and length.
STATE_TYPE = "header string, layout string, blobs binary"

_log = get_logger("assembler")


def log_notices(notices: Iterable[Event]) -> None:
    """Write notices to the executor's log, one line each."""
    for notice in notices:
        _log.warning(notice.name, **notice.fields)


def gather(frames: Iterable[pd.DataFrame]) -> pa.Table:
    """The events of a source partition's packed rows, those with the lowest positions first."""
    tables = [from_blob(blob) for frame in frames for blob in frame[BLOB]]
    tables.sort(key=_lowest_position)
    return pa.concat_tables(tables)


def _lowest_position(table: pa.Table) -> int:
    first = table[schema.POSITION][0].as_py()
    return 0 if first is None else int(first)  # a NULL position is refused later, with its place


def as_frame(packet: Packet) -> pd.DataFrame:
    """One packed row as the pandas frame that Spark wants."""
    partition, blob, counts = packet
    return pd.DataFrame({schema.SOURCE_PARTITION: [partition], BLOB: [blob], COUNTS: [counts]})


class Processor(StatefulProcessor):
    """The state of each source partition as a ValueState (header) and a MapState (blobs by number)."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._header = handle.getValueState("header", "header string")
        self._blobs = handle.getMapState("blobs", "number bigint", "blob binary")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[pd.DataFrame]:
        events, now = gather(rows), _now(timerValues.getCurrentProcessingTimeInMs())
        return self._apply(key[0], self._assembler(key[0]).feed(self._state(), events, now, self._read))

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[pd.DataFrame]:
        now = _now(timerValues.getCurrentProcessingTimeInMs())
        return self._apply(key[0], self._assembler(key[0]).expire(self._state(), now))

    def close(self) -> None:
        """Nothing is held outside the state store."""

    def _assembler(self, partition: Partition) -> Assembler:
        return Assembler(self._policy, partition)

    def _state(self) -> AssemblerState:
        stored = self._header.get()
        return AssemblerState.from_json(stored[0]) if stored else AssemblerState()

    def _read(self, number: int) -> pa.Table:
        stored = self._blobs.getValue((number,))
        if stored is None:
            raise LookupError(f"blob {number} is missing from the state store")
        return from_blob(stored[0])

    def _apply(self, partition: Partition, step: Step) -> Iterator[pd.DataFrame]:
        log_notices(step.notices)
        yield from map(as_frame, packets(partition, step.released))
        for number in step.removed:
            self._blobs.removeKey((number,))
        for number, rows in step.added.items():
            self._blobs.updateValue((number,), (to_blob(rows),))
        self._header.update((step.state.to_json(),))
        if self._policy.open_timeout is not None:
            self._wake_at(step.state.expires_at(self._policy.open_timeout))
        yield as_frame(receipt(partition, step.counters, step.state))

    def _wake_at(self, seconds: float | None) -> None:
        """Keep exactly one timer, for when the oldest open transaction is due."""
        due = None if seconds is None else math.ceil(seconds * 1000)
        timers = list(self._handle.listTimers())
        for timer in timers:
            if timer != due:
                self._handle.deleteTimer(timer)
        if due is not None and due not in timers:
            self._handle.registerTimer(due)


def group_function(policy: Policy) -> Callable[[Any, Iterator[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]:
    """The same for applyInPandasWithState: header and blobs in the one value it has."""

    def assemble(key: Any, frames: Iterator[pd.DataFrame], group: GroupState) -> Iterator[pd.DataFrame]:
        partition, now = key[0], _now(group.getCurrentProcessingTimeMs())
        header, layout, joined = group.get if group.exists else (AssemblerState().to_json(), "[]", b"")
        blobs = _split(layout, joined)
        assembler, state = Assembler(policy, partition), AssemblerState.from_json(header)
        if group.hasTimedOut:
            step = assembler.expire(state, now)
        else:
            step = assembler.feed(state, gather(frames), now, lambda number: from_blob(blobs[number]))
        log_notices(step.notices)
        yield from map(as_frame, packets(partition, step.released))
        kept = {number: blob for number, blob in blobs.items() if number not in step.removed}
        kept |= {number: to_blob(rows) for number, rows in step.added.items()}
        group.update((step.state.to_json(), _layout(kept), b"".join(kept.values())))
        due = step.state.expires_at(policy.open_timeout)
        if due is not None:
            group.setTimeoutDuration(max(1, math.ceil((due - now) * 1000)))
        yield as_frame(receipt(partition, step.counters, step.state))

    return assemble


def _layout(blobs: dict[int, bytes]) -> str:
    return orjson.dumps([(number, len(blob)) for number, blob in blobs.items()]).decode()


def _split(layout: str, joined: bytes) -> dict[int, bytes]:
    blobs, start = {}, 0
    for number, length in orjson.loads(layout):
        blobs[number] = bytes(joined[start : start + length])
        start += length
    return blobs


def _now(milliseconds: int) -> float:
    """Spark's processing time of the micro-batch in seconds; the machine's where Spark gives none (no open_timeout)."""
    return milliseconds / 1000 if milliseconds > 0 else time.time()
