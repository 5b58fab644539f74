"""The two state operators of verified transactions: where header and blobs live between micro-batches.

As in `spark_state`: transformWithState (RocksDB) writes each blob once, applyInPandasWithState (any provider) has one
value for all of them.
"""

# ruff: noqa: N802, N803, ARG002 - the names of methods and arguments are Spark's
from __future__ import annotations

import logging
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
from starrocks_txn_sink.assembler.packing import BLOB, COUNTS
from starrocks_txn_sink.assembler.state import from_blob, pieces, to_blob
from starrocks_txn_sink.assembler.verified import VerifiedAssembler, VerifiedPolicy, VerifiedStep
from starrocks_txn_sink.assembler.verified_schema import EVENTS
from starrocks_txn_sink.assembler.verified_state import VerifiedState

STATE_TYPE = "header string, layout string, blobs binary"
LETTERS = "#quarantine"
"""What the source partition of dead letters has after the source's name: they have positions of their own."""

Packet = tuple[str, bytes | None, str | None]

_log = logging.getLogger("starrocks_txn_sink.assembler")


def gather(blobs: Iterable[bytes]) -> pa.Table:
    """The packed events of one source, in the schema that the rules want."""
    tables = [from_blob(blob).select(EVENTS.names).cast(EVENTS) for blob in blobs]
    return pa.concat_tables(tables) if tables else EVENTS.empty_table()


def packets(source: str, step: VerifiedStep) -> Iterator[Packet]:
    """What a step gives out, as packed rows of bounded size, and one that only holds its counts; notices are logged."""
    for notice in step.notices:
        _log.warning("%s %s", notice.name, notice.fields)
    for partition, tables in ((source, step.released), (source + LETTERS, step.letters)):
        for table in tables:
            for piece in pieces(table):
                yield partition, to_blob(piece), None
    yield source, None, orjson.dumps(step.counters.as_dict()).decode()


class VerifiedProcessor(StatefulProcessor):
    """The state of each source as a ValueState (header) and a MapState (blobs by number)."""

    def __init__(self, policy: VerifiedPolicy) -> None:
        self._policy = policy

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._header = handle.getValueState("header", "header string")
        self._blobs = handle.getMapState("blobs", "number bigint", "blob binary")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[pd.DataFrame]:
        return self._step(key[0], gather(blob for frame in rows for blob in frame[BLOB]), timerValues)

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[pd.DataFrame]:
        return self._step(key[0], EVENTS.empty_table(), timerValues)

    def close(self) -> None:
        """Nothing is held outside the state store."""

    def _step(self, source: str, events: pa.Table, timer_values: TimerValues) -> Iterator[pd.DataFrame]:
        stored = self._header.get()
        state = VerifiedState.from_json(stored[0]) if stored else VerifiedState()
        now = _now(timer_values.getCurrentProcessingTimeInMs())
        step = VerifiedAssembler(self._policy, source).feed(state, events, now, self._read)
        yield from map(_as_frame, packets(source, step))
        for number in step.removed:
            self._blobs.removeKey((number,))
        for number, rows in step.added.items():
            self._blobs.updateValue((number,), (to_blob(rows),))
        self._header.update((step.state.to_json(),))
        if self._policy.open_timeout is not None:
            self._wake_at(step.state.expires_at(self._policy.open_timeout))

    def _read(self, number: int) -> pa.Table:
        stored = self._blobs.getValue((number,))
        if stored is None:
            raise LookupError(f"blob {number} is missing from the state store")
        return from_blob(stored[0])

    def _wake_at(self, seconds: float | None) -> None:
        """Keep exactly one timer, for when the oldest transaction is overdue."""
        due = None if seconds is None else math.ceil(seconds * 1000)
        timers = list(self._handle.listTimers())
        for timer in timers:
            if timer != due:
                self._handle.deleteTimer(timer)
        if due is not None and due not in timers:
            self._handle.registerTimer(due)


def group_function(
    policy: VerifiedPolicy,
) -> Callable[[Any, Iterator[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]:
    """The same for applyInPandasWithState: header and blobs in the one value it has."""

    def assemble(key: Any, frames: Iterator[pd.DataFrame], group: GroupState) -> Iterator[pd.DataFrame]:
        source, now = key[0], _now(group.getCurrentProcessingTimeMs())
        header, layout, joined = group.get if group.exists else (VerifiedState().to_json(), "[]", b"")
        blobs = _split(layout, joined)
        events = EVENTS.empty_table() if group.hasTimedOut else gather(b for frame in frames for b in frame[BLOB])
        assembler, state = VerifiedAssembler(policy, source), VerifiedState.from_json(header)
        step = assembler.feed(state, events, now, lambda number: from_blob(blobs[number]))
        yield from map(_as_frame, packets(source, step))
        kept = {number: blob for number, blob in blobs.items() if number not in step.removed}
        kept |= {number: to_blob(rows) for number, rows in step.added.items()}
        lengths = orjson.dumps([(number, len(blob)) for number, blob in kept.items()]).decode()
        group.update((step.state.to_json(), lengths, b"".join(kept.values())))
        due = step.state.expires_at(policy.open_timeout)
        if due is not None:
            group.setTimeoutDuration(max(1, math.ceil((due - now) * 1000)))

    return assemble


def _split(layout: str, joined: bytes) -> dict[int, bytes]:
    blobs, start = {}, 0
    for number, length in orjson.loads(layout):
        blobs[number] = bytes(joined[start : start + length])
        start += length
    return blobs


def _as_frame(packet: Packet) -> pd.DataFrame:
    source, blob, counts = packet
    return pd.DataFrame({schema.SOURCE_PARTITION: [source], BLOB: [blob], COUNTS: [counts]})


def _now(milliseconds: int) -> float:
    """Spark's processing time in seconds; the machine's where Spark gives none (no open_timeout)."""
    return milliseconds / 1000 if milliseconds > 0 else time.time()
