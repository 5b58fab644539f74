"""The two state operators of the assembler (`key_state` is where its header and blobs live between micro-batches).

Both take packed events (packing.pack) of one source partition and yield packed rows and a receipt. They behave alike;
they differ in what a long open transaction costs. `Processor` (transformWithState, RocksDB) writes each blob once.
`group_function` (applyInPandasWithState, any provider) has a single state value: Spark writes it anew, all blobs
included, whenever the source partition has events.
"""

# ruff: noqa: N802, N803, ARG002 - the names of methods and arguments are Spark's
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

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
from starrocks_txn_sink.assembler.key_state import GroupKeyState, KeyState, seconds_of
from starrocks_txn_sink.assembler.packing import BLOB, COUNTS, Packet, Partition, packets, receipt
from starrocks_txn_sink.assembler.policy import Policy
from starrocks_txn_sink.assembler.rules import Assembler, Step
from starrocks_txn_sink.assembler.state import AssemblerState, from_blob
from starrocks_txn_sink.events import Event
from starrocks_txn_sink.logs import get_logger

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


def _given_out(partition: Partition, step: Step) -> Iterator[pd.DataFrame]:
    """What a step releases, and its receipt; its notices are logged."""
    log_notices(step.notices)
    yield from map(as_frame, packets(partition, step.released))
    yield as_frame(receipt(partition, step.counters, step.state))


def _stored(header: str | None) -> AssemblerState:
    return AssemblerState() if header is None else AssemblerState.from_json(header)


class Processor(StatefulProcessor):
    """For transformWithState."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._kept = KeyState(handle)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[pd.DataFrame]:
        events, now = gather(rows), seconds_of(timerValues.getCurrentProcessingTimeInMs())
        assembler = Assembler(self._policy, key[0])
        return self._keep(key[0], assembler.feed(_stored(self._kept.header), events, now, self._kept.read))

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[pd.DataFrame]:
        now = seconds_of(timerValues.getCurrentProcessingTimeInMs())
        return self._keep(key[0], Assembler(self._policy, key[0]).expire(_stored(self._kept.header), now))

    def close(self) -> None:
        """Nothing is held outside the state store."""

    def _keep(self, partition: Partition, step: Step) -> Iterator[pd.DataFrame]:
        yield from _given_out(partition, step)
        self._kept.write(step.state.to_json(), step.removed, step.added)
        if self._policy.open_timeout is not None:
            self._kept.wake_at(step.state.expires_at(self._policy.open_timeout))


def group_function(policy: Policy) -> Callable[[Any, Iterator[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]:
    """The same for applyInPandasWithState."""

    def assemble(key: Any, frames: Iterator[pd.DataFrame], group: GroupState) -> Iterator[pd.DataFrame]:
        partition, now = key[0], seconds_of(group.getCurrentProcessingTimeMs())
        kept, assembler = GroupKeyState(group), Assembler(policy, partition)
        state = _stored(kept.header)
        if group.hasTimedOut:
            step = assembler.expire(state, now)
        else:
            step = assembler.feed(state, gather(frames), now, kept.read)
        yield from _given_out(partition, step)
        kept.write(step.state.to_json(), step.removed, step.added)
        kept.wake_at(step.state.expires_at(policy.open_timeout), now)

    return assemble
