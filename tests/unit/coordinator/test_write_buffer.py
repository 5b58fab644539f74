"""The write buffer: chunks frozen at their time, loads that are worth a request, full buffers relieved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from starrocks_txn_sink.coordinator.model import Chunk, PositionSpan, RegionCount, RegionRows
from starrocks_txn_sink.coordinator.write_buffer import WriteBuffer
from starrocks_txn_sink.errors import BufferFull, InputError
from starrocks_txn_sink.protocol.label import ReplacedRows
from tests.support.lane_driver import small_limits


def write_buffer(**limits: Any) -> WriteBuffer:
    return WriteBuffer(small_limits(**limits))


def write(rows: WriteBuffer, now: float, size: int = 10, partition: str = "p", table: str = "orders") -> None:
    rows.write(RegionRows(partition, table, memoryview(b"," * size), 1), now)


def end(rows: WriteBuffer, now: float, position: int = 1, partition: str = "p") -> None:
    rows.end_transactions(PositionSpan(partition, position, position, 1), now)


def frozen(rows: WriteBuffer, table: str = "orders") -> list[int]:
    """The sizes of the inactive chunks of `table` that wait for a load."""
    return [chunk.bytes for chunk in rows.pending.get(table, ())]


def test_small_source_transactions_share_a_chunk_for_the_mini_interval() -> None:
    rows = write_buffer(mini_interval=1.0)
    for now in (5.0, 5.2, 5.4, 5.9):
        write(rows, now)
        end(rows, now)
    assert frozen(rows) == [10]  # the first one at once
    write(rows, 6.0)
    end(rows, 6.0)
    assert frozen(rows) == [10, 40]


def test_rows_at_a_clean_boundary_are_frozen_when_time_passes_and_then_wait_again() -> None:
    rows = write_buffer(mini_interval=1.0)
    for now in (5.0, 5.5):
        write(rows, now)
        end(rows, now)
    rows.pass_time(5.9)
    assert frozen(rows) == [10]
    rows.pass_time(6.0)
    assert frozen(rows) == [10, 10]
    write(rows, 6.5)
    end(rows, 6.5)
    assert frozen(rows) == [10, 10]


def test_a_chunk_of_the_full_size_leaves_inside_a_source_transaction_and_counts_as_a_switch() -> None:
    rows = write_buffer(mini_interval=1.0, chunk_bytes=30)
    write(rows, 5.0, 29)
    assert frozen(rows) == []
    write(rows, 5.0, 1)
    assert frozen(rows) == [30]
    write(rows, 5.5)
    end(rows, 5.5)
    assert frozen(rows) == [30]


def test_full_buffers_freeze_the_largest_regions_until_half_can_leave() -> None:
    rows = write_buffer(buffer_bytes=100)
    for table, size in (("a", 20), ("b", 30), ("c", 25)):
        write(rows, 5.0, size, table=table)
    assert (rows.saturated, frozen(rows, "b")) == (False, [])
    write(rows, 5.0, 25, table="d")
    assert rows.saturated
    assert [frozen(rows, table) for table in "abcd"] == [[], [30], [25], []]  # 55 of 100, c was there before d
    assert (rows.buffered_bytes, rows.buffered_peak) == (100, 100)
    rows.release(55)
    write(rows, 5.0, 1, table="a")
    assert (rows.buffered_bytes, rows.buffered_peak) == (46, 100)


def test_half_of_the_buffer_is_enough_relief() -> None:
    rows = write_buffer(buffer_bytes=100)
    for table in ("a", "b"):
        write(rows, 5.0, 50, table=table)
    assert [frozen(rows, table) for table in "ab"] == [[50], []]
    rows.release(50)
    end(rows, 5.05)
    write(rows, 5.05, 5, table="a")
    end(rows, 5.05, 2)
    assert frozen(rows, "a") == [50]  # within the mini interval


def loads(rows: WriteBuffer, *loading: str) -> list[tuple[str, list[int], bool]]:
    """The loads that are due while those into `loading` run: table, sizes of chunks, whether newest chunks first."""
    running, due = set(loading), []
    for chunks, newest_first in rows.take_loads(running):
        due.append((chunks[0].table, [chunk.bytes for chunk in chunks], newest_first))
        running.add(chunks[0].table)
    return due


def chunks(rows: WriteBuffer, *sizes: int, table: str = "orders") -> None:
    """Inactive chunks of these sizes."""
    for size in sizes:
        write(rows, 5.0, size, table=table)
        end(rows, 5.0)


def test_chunks_wait_until_a_load_is_worth_its_request() -> None:
    rows = write_buffer(load_bytes=50, chunk_bytes=20)
    chunks(rows, 20, 29)
    assert loads(rows) == []
    chunks(rows, 20)
    assert loads(rows) == [("orders", [20, 29, 20], False)]
    assert loads(rows) == []


def test_after_the_end_all_chunks_are_sent_the_largest_table_first() -> None:
    rows = write_buffer()
    chunks(rows, 10, table="a")
    chunks(rows, 30, table="b")
    write(rows, 6.0, 5, table="c")  # not frozen yet
    end(rows, 6.0)
    assert loads(rows) == []
    assert rows.all_sent is False
    rows.finish(6.0)
    assert loads(rows) == [("b", [30], False), ("a", [10], False), ("c", [5], False)]
    assert (rows.all_sent, rows.loads) == (True, 3)


def test_a_table_has_one_load_at_a_time_and_loads_are_bounded() -> None:
    rows = write_buffer(load_parallelism=2)
    for table, size in (("a", 30), ("b", 20), ("c", 10)):
        chunks(rows, size, table=table)
    rows.finish(6.0)
    assert loads(rows, "x", "y") == []
    assert loads(rows, "a") == [("b", [20], False)]
    assert loads(rows) == [("a", [30], False), ("c", [10], False)]


def test_a_load_takes_no_more_than_a_body_holds_and_at_least_one_chunk() -> None:
    rows = write_buffer(body_bytes=50, chunk_bytes=10)
    chunks(rows, 60, 20, 30, 10)
    rows.finish(6.0)
    assert [sizes for _ in range(3) for _, sizes, _ in loads(rows)] == [[60], [20, 30], [10]]


def test_held_rows_are_loaded_at_the_end_and_keyed_tables_newest_chunks_first() -> None:
    rows = WriteBuffer(small_limits(body_bytes=30, chunk_bytes=10, load_bytes=1), lambda _: True, {"orders"}, hold=True)
    chunks(rows, 10, 20, 30)
    chunks(rows, 15, 15, table="plain")
    had_rows = rows.has_rows
    rows.finish(6.0)
    assert (had_rows, rows.has_rows) == (False, True)
    sent_loads = [load for _ in range(2) for load in loads(rows)]
    assert sent_loads == [("orders", [30], True), ("plain", [15, 15], False), ("orders", [10, 20], True)]


def test_without_a_place_to_spill_nothing_is_held() -> None:
    rows = WriteBuffer(small_limits(), None, {"orders"}, hold=True)
    write(rows, 5.0)
    assert rows.has_rows


def test_held_rows_that_fill_the_buffer_leave_memory() -> None:
    spilled: list[int] = []

    def spill(waiting: Sequence[Chunk]) -> bool:
        spilled.extend(chunk.bytes for chunk in waiting)
        return len(spilled) < 3

    rows = WriteBuffer(small_limits(buffer_bytes=100, chunk_bytes=50), spill, {"orders"}, hold=True)
    chunks(rows, 50)
    assert spilled == []
    chunks(rows, 50)
    assert (spilled, rows.buffered_bytes) == ([50, 50], 0)
    with pytest.raises(BufferFull, match="no temporary file"):
        chunks(rows, 100)


def test_rows_are_counted_by_source_partition_and_table_without_those_that_a_load_left_out() -> None:
    rows = write_buffer()
    for partition, table in (("q", "a"), ("p", "b"), ("p", "a")):
        write(rows, 5.0, 10, partition, table)
        end(rows, 5.0, 3, partition)
    rows.add_replaced("a", {"p": ReplacedRows(1, 10)})
    assert rows.region_counts() == (
        RegionCount("p", "a", 0, 0, 1),
        RegionCount("p", "b", 1, 10),
        RegionCount("q", "a", 1, 10),
    )


def test_the_span_of_a_source_partition_reaches_from_its_first_source_transaction_to_its_last() -> None:
    rows = write_buffer()
    for position, partition in ((3, "q"), (5, "p"), (8, "p")):
        rows.end_transactions(PositionSpan(partition, position, position + 1, 2, f"d{position}"), 5.0)
    rows.end_transactions(PositionSpan("p", 9, 9, 0), 5.0)  # says that rows have ended, and no position
    assert rows.position_spans() == (PositionSpan("p", 5, 9, 4, "d8"), PositionSpan("q", 3, 4, 2, "d3"))


def test_it_has_sent_everything_when_no_more_rows_come_and_all_are_taken() -> None:
    rows = write_buffer()
    assert (rows.all_sent, rows.has_rows) == (False, False)
    write(rows, 5.0)
    assert rows.has_rows  # not frozen yet, and something to load
    end(rows, 5.0)
    rows.finish(6.0)
    assert (rows.all_sent, rows.has_rows) == (False, True)
    loads(rows)
    assert (rows.all_sent, rows.ended) == (True, True)


def test_rows_that_end_inside_a_source_transaction_are_refused_with_its_place() -> None:
    rows = write_buffer()
    write(rows, 5.0, partition="7")
    with pytest.raises(InputError, match="The rows of source partition 7 end inside a source transaction") as failure:
        rows.finish(6.0)
    assert "the output of assemble_transactions, unfiltered" in str(failure.value)
    assert failure.value.context["source_partition"] == "7"
    assert not rows.ended


def test_the_loads_of_many_tables_do_not_sort_them_for_each_load(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, measured = write_buffer(load_parallelism=1), 0
    right = WriteBuffer._pending_bytes

    def counting(self: WriteBuffer, table: str) -> int:
        nonlocal measured
        measured += 1
        return right(self, table)

    for number in range(200):
        write(rows, 5.0, 10 + number % 7, table=f"t{number}")
    end(rows, 5.0)
    rows.finish(6.0)
    monkeypatch.setattr(WriteBuffer, "_pending_bytes", counting)
    sizes: list[int] = []
    while loads := [sum(chunk.bytes for chunk in chunks) for chunks, _ in rows.take_loads([])]:
        sizes += loads
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) == 200
    assert measured == 200
