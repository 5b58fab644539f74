"""The write buffer: chunks frozen at their time, transaction batches closed, full buffers relieved."""

from __future__ import annotations

from typing import Any

import pytest

from starrocks_txn_sink.coordinator.model import PositionSpan, RegionRows
from starrocks_txn_sink.coordinator.write_buffer import TransactionBatch, WriteBuffer
from starrocks_txn_sink.errors import InputError
from tests.support.lane_driver import small_limits


def write_buffer(**limits: Any) -> WriteBuffer:
    return WriteBuffer(small_limits(**limits))


def write(rows: WriteBuffer, now: float, size: int = 10, partition: str = "p", table: str = "orders") -> None:
    rows.write(RegionRows(partition, table, memoryview(b"," * size), 1), now)


def end(rows: WriteBuffer, now: float, position: int = 1, partition: str = "p", *, recycle: bool = False) -> None:
    rows.end_transactions(PositionSpan(partition, position, position, 1), now, recycle=recycle)


def frozen(rows: WriteBuffer, table: str = "orders") -> list[int]:
    """The sizes of the chunks of `table` that wait in the transaction batches, one after the other."""
    return [chunk.bytes for batch in rows.batches for chunk in batch.pending.get(table, ())]


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
    rows.pass_time(5.9, recycle=False)
    assert frozen(rows) == [10]
    rows.pass_time(6.0, recycle=False)
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


@pytest.mark.parametrize(("at", "batches"), [(5.9, 1), (6.0, 2)])
def test_a_batch_is_closed_when_the_commit_interval_has_passed_since_its_first_row(at: float, batches: int) -> None:
    rows = write_buffer(commit_interval=1.0)
    write(rows, 5.0)
    write(rows, 5.5)
    end(rows, at)
    assert len(rows.batches) == batches
    assert rows.batches[0].closed is (batches == 2)


def test_never_inside_a_source_transaction_and_not_without_rows() -> None:
    rows = write_buffer(commit_interval=1.0)
    rows.pass_time(100.0, recycle=True)
    write(rows, 100.0)
    rows.pass_time(200.0, recycle=True)
    assert len(rows.batches) == 1
    assert rows.open_partition == "p"
    end(rows, 200.0)
    assert [batch.closed for batch in rows.batches] == [True, False]
    end(rows, 300.0, 2)  # a source transaction without rows: nothing new to close
    assert len(rows.batches) == 2


@pytest.mark.parametrize("at_end", [True, False])
def test_what_is_to_be_recycled_ends_at_the_next_clean_boundary(at_end: bool) -> None:
    rows = write_buffer()
    write(rows, 5.0)
    end(rows, 5.0, recycle=at_end)
    assert rows.batches[0].recycled is at_end
    rows.pass_time(5.0, recycle=True)
    assert [(batch.closed, batch.recycled) for batch in rows.batches] == [(True, True), (False, False)]
    write(rows, 6.0)
    end(rows, 6.0, 2, recycle=True)  # the StarRocks transaction to recycle has the first batch; this one is another's
    assert not rows.batches[1].closed


@pytest.mark.parametrize(("more", "closed"), [(9, False), (10, True)])
def test_a_batch_that_may_be_bisected_never_grows_beyond_that(more: int, closed: bool) -> None:
    rows = write_buffer(close_bytes=50, chunk_bytes=40, mini_interval=1.0)
    write(rows, 5.0, 40)
    write(rows, 5.0, more)  # 40 bytes are frozen, these are not
    assert frozen(rows) == [40]
    end(rows, 5.0)
    assert rows.batches[0].closed is closed


def test_closing_takes_what_is_not_frozen_and_starts_its_mini_interval() -> None:
    rows = write_buffer(commit_interval=1.0, mini_interval=2.0)
    write(rows, 5.0)
    end(rows, 5.0)
    write(rows, 5.1)
    end(rows, 5.1, 2)
    assert frozen(rows) == [10]
    rows.pass_time(6.0, recycle=False)
    assert frozen(rows) == [10, 10]
    write(rows, 6.4)
    end(rows, 6.4, 3)
    assert frozen(rows) == [10, 10]


def test_it_is_finished_when_no_more_rows_come_and_all_are_committed() -> None:
    rows = write_buffer()
    assert (rows.finished, rows.has_rows) == (False, False)
    write(rows, 5.0)
    assert rows.has_rows  # not frozen yet, and something to begin with
    end(rows, 5.0)
    rows.finish(6.0)
    assert (rows.finished, rows.has_rows) == (False, True)
    assert rows.remove_committed().closed
    assert (rows.finished, rows.has_rows) == (True, False)


def test_there_is_always_a_batch_to_fill() -> None:
    rows = write_buffer()
    rows.remove_committed()
    assert [batch.empty for batch in rows.batches] == [True]


def test_rows_that_end_inside_a_source_transaction_are_refused_with_its_place() -> None:
    rows = write_buffer()
    write(rows, 5.0, partition="7")
    with pytest.raises(InputError, match="The rows of source partition 7 end inside a source transaction") as caught:
        rows.finish(6.0)
    assert "the output of assemble_transactions, unfiltered" in str(caught.value)
    assert caught.value.context["source_partition"] == "7"
    assert not rows.finished


def test_the_loads_of_many_tables_do_not_sort_them_for_each_load(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, measured = write_buffer(load_parallelism=1), 0
    right = TransactionBatch.pending_bytes

    def counting(self: TransactionBatch, table: str) -> int:
        nonlocal measured
        measured += 1
        return right(self, table)

    for number in range(200):
        write(rows, 5.0, 10 + number % 7, table=f"t{number}")
    end(rows, 5.0)
    rows.finish(6.0)
    monkeypatch.setattr(TransactionBatch, "pending_bytes", counting)
    sizes: list[int] = []
    while loads := [sum(chunk.bytes for chunk in chunks) for chunks, _ in rows.take_loads([])]:
        sizes += loads
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) == 200
    assert measured == 200


def test_chunks_that_come_back_are_loaded_again_largest_first() -> None:
    rows = write_buffer(load_parallelism=9)
    for table, size in (("small", 1), ("large", 9), ("middle", 5)):
        write(rows, 5.0, size, table=table)
    end(rows, 5.0)
    rows.finish(6.0)
    for _ in range(2):
        assert [chunks[0].table for chunks, _ in rows.take_loads([])] == ["large", "middle", "small"]
        assert list(rows.take_loads([])) == []
        rows.rewind()
