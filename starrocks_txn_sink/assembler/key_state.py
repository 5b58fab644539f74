"""A header and numbered blobs of one key, in either of Spark's two state operators.

transformWithState (RocksDB) has a ValueState and a MapState: each blob is written once, under a key of its own.
applyInPandasWithState (any provider) has a single value: all blobs stand in it one after the other. Spark cannot bring
arrays in that state to Python, so a layout cuts them: JSON pairs of blob number and length.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import orjson
import pyarrow as pa
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

from starrocks_txn_sink.assembler.state import from_blob, to_blob
from starrocks_txn_sink.clock import SystemClock

GROUP_STATE_TYPE = "header string, layout string, blobs binary"


class KeyState:
    """The state of the current key of a StatefulProcessor."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._header = handle.getValueState("header", "header string")
        self._blobs = handle.getMapState("blobs", "number bigint", "blob binary")

    @property
    def header(self) -> str | None:
        stored: Any = self._header.get()
        return stored[0] if stored else None

    def read(self, number: int) -> pa.Table:
        """The rows of a blob; LookupError when the store lost it."""
        stored = self._blobs.getValue((number,))
        if stored is None:
            raise LookupError(f"blob {number} is missing from the state store")
        return from_blob(stored[0])

    def write(self, header: str, removed: Iterable[int], added: Mapping[int, pa.Table]) -> None:
        """Put the header and new blobs into the store, and take old blobs out."""
        for number in removed:
            self._blobs.removeKey((number,))
        for number, rows in added.items():
            self._blobs.updateValue((number,), (to_blob(rows),))
        self._header.update((header,))

    def wake_at(self, seconds: float | None) -> None:
        """Keep exactly one timer, at `seconds` since the epoch; none for None."""
        due = None if seconds is None else math.ceil(seconds * 1000)
        timers = list(self._handle.listTimers())
        for timer in timers:
            if timer != due:
                self._handle.deleteTimer(timer)
        if due is not None and due not in timers:
            self._handle.registerTimer(due)


class GroupKeyState:
    """The same in the one value of a GroupState."""

    def __init__(self, group: GroupState) -> None:
        self._group = group
        header, layout, joined = group.get if group.exists else (None, "[]", b"")
        self.header: str | None = header
        self._blobs = _split(layout, joined)

    def read(self, number: int) -> pa.Table:
        return from_blob(self._blobs[number])

    def write(self, header: str, removed: Iterable[int], added: Mapping[int, pa.Table]) -> None:
        gone = set(removed)
        kept = {number: blob for number, blob in self._blobs.items() if number not in gone}
        kept |= {number: to_blob(rows) for number, rows in added.items()}
        layout = orjson.dumps([(number, len(blob)) for number, blob in kept.items()]).decode()
        self._group.update((header, layout, b"".join(kept.values())))

    def wake_at(self, seconds: float | None, now: float) -> None:
        if seconds is not None:
            self._group.setTimeoutDuration(max(1, math.ceil((seconds - now) * 1000)))


def seconds_of(milliseconds: int) -> float:
    """Spark's processing time of the micro-batch in seconds; the machine's where Spark gives none (no open_timeout)."""
    return milliseconds / 1000 if milliseconds > 0 else SystemClock().wall()


def _split(layout: str, joined: bytes) -> dict[int, bytes]:
    blobs, start = {}, 0
    for number, length in orjson.loads(layout):
        blobs[number] = bytes(joined[start : start + length])
        start += length
    return blobs
