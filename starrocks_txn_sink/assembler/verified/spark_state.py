"""The two state operators of verified transactions, over the same `key_state` as those of the assembler."""

# ruff: noqa: N802, N803, ARG002 - the names of methods and arguments are Spark's
from __future__ import annotations

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

from starrocks_txn_sink.assembler.key_state import GroupKeyState, KeyState, seconds_of
from starrocks_txn_sink.assembler.packing import BLOB, Packet
from starrocks_txn_sink.assembler.spark_state import as_frame, log_notices
from starrocks_txn_sink.assembler.state import from_blob, pieces, to_blob
from starrocks_txn_sink.assembler.verified.rules import VerifiedAssembler, VerifiedPolicy, VerifiedStep
from starrocks_txn_sink.assembler.verified.schema import EVENTS
from starrocks_txn_sink.assembler.verified.state import VerifiedState

LETTERS = "#quarantine"
"""What the source partition of dead letters has after the source's name: they have positions of their own."""


def gather(blobs: Iterable[bytes]) -> pa.Table:
    """The packed events of one source, in the schema that the rules want."""
    tables = [from_blob(blob).select(EVENTS.names).cast(EVENTS) for blob in blobs]
    return pa.concat_tables(tables) if tables else EVENTS.empty_table()


def packets(source: str, step: VerifiedStep) -> Iterator[Packet]:
    """What a step gives out, as packed rows of bounded size, and one that only holds its counts; notices are logged."""
    log_notices(step.notices)
    for partition, tables in ((source, step.released), (source + LETTERS, step.letters)):
        for table in tables:
            for piece in pieces(table):
                yield partition, to_blob(piece), None
    yield source, None, orjson.dumps(step.counters.as_dict()).decode()


def _stored(header: str | None) -> VerifiedState:
    return VerifiedState() if header is None else VerifiedState.from_json(header)


class VerifiedProcessor(StatefulProcessor):
    """For transformWithState."""

    def __init__(self, policy: VerifiedPolicy) -> None:
        self._policy = policy

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._kept = KeyState(handle)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[pd.DataFrame]:
        return self._step(key[0], gather(blob for frame in rows for blob in frame[BLOB]), timerValues)

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[pd.DataFrame]:
        return self._step(key[0], EVENTS.empty_table(), timerValues)

    def close(self) -> None:
        """Nothing is held outside the state store."""

    def _step(self, source: str, events: pa.Table, timer_values: TimerValues) -> Iterator[pd.DataFrame]:
        now = seconds_of(timer_values.getCurrentProcessingTimeInMs())
        assembler = VerifiedAssembler(self._policy, source)
        step = assembler.feed(_stored(self._kept.header), events, now, self._kept.read)
        yield from map(as_frame, packets(source, step))
        self._kept.write(step.state.to_json(), step.removed, step.added)
        if self._policy.open_timeout is not None:
            self._kept.wake_at(step.state.expires_at(self._policy.open_timeout))


def group_function(
    policy: VerifiedPolicy,
) -> Callable[[Any, Iterator[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]:
    """The same for applyInPandasWithState."""

    def assemble(key: Any, frames: Iterator[pd.DataFrame], group: GroupState) -> Iterator[pd.DataFrame]:
        source, now = key[0], seconds_of(group.getCurrentProcessingTimeMs())
        kept = GroupKeyState(group)
        events = EVENTS.empty_table() if group.hasTimedOut else gather(b for frame in frames for b in frame[BLOB])
        step = VerifiedAssembler(policy, source).feed(_stored(kept.header), events, now, kept.read)
        yield from map(as_frame, packets(source, step))
        kept.write(step.state.to_json(), step.removed, step.added)
        kept.wake_at(step.state.expires_at(policy.open_timeout), now)

    return assemble
