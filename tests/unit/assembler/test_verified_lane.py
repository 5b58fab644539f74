"""Rows of verified transactions beyond the memory of their lane."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from starrocks_txn_sink.assembler.rules.model import ROW, SOURCE_PARTITION
from starrocks_txn_sink.assembler.rules.spill import CarriedState, SpillStorage
from starrocks_txn_sink.assembler.verified.lane import VerifiedLane
from starrocks_txn_sink.assembler.verified.rules import VerifiedPolicy
from starrocks_txn_sink.errors import StateNotWritten
from tests.support.memory_directory import MemoryDirectory
from tests.support.verified_source import Fields, begin, end, row, table

WAITS = [begin("2", 2, 6), *(row("2", order, lsn=6 + order) for order in (1, 2, 3))]
WHOLE = [begin("1", 0, 4), *(row("1", order, lsn=4 + order) for order in (1, 2)), end("1", 1, 6, {"public.a": 2})]


def lane_over(directory: MemoryDirectory, carried: dict[str, CarriedState] | None = None) -> VerifiedLane:
    storage = SpillStorage(directory, f"s{len(directory.files)}")
    return VerifiedLane(VerifiedPolicy(), carried or {}, 1.0, storage, held_limit=0)


def fed(lane: VerifiedLane, *events: Fields) -> list[Any]:
    named = table(events).add_column(0, SOURCE_PARTITION, pa.repeat("shop", len(events)))
    assert not list(lane.feed(named))
    return [text for part in lane.finish() for text in part.rows[ROW].to_pylist()]


def test_rows_beyond_the_memory_are_in_a_file_without_a_name_until_they_are_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    lane = lane_over(directory := MemoryDirectory())
    released = fed(lane, *WHOLE, *WAITS)
    assert released == [event["row"] for event in WHOLE[1:3]]
    assert directory.files == {}
    assert not [*tmp_path.iterdir()]
    carried = lane.carry_over()
    again = lane_over(directory, carried)
    again.storage.inline = lane.storage.new_inline
    assert fed(again, end("2", 3, 9, {"public.a": 3})) == [event["row"] for event in WAITS[1:]]


def test_a_full_disk_ends_the_lane_and_can_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    with pytest.raises(StateNotWritten, match="No space left on device"):
        fed(lane_over(MemoryDirectory()), *WHOLE)
