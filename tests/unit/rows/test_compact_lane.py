"""Lanes that send one row per key, whatever the sizes of loads and buffers and the moment of a key's return."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink.coordinator.model import Chunk, Receipt, RegionCount
from starrocks_txn_sink.errors import BufferFull, KeyRepeated
from starrocks_txn_sink.rows.keys import KeyColumn
from tests.support.lane_driver import LABEL, LaneDriver, small_limits
from tests.support.model_server import ModelServer

KEYS = {"t": [KeyColumn.of("k", "BIGINT", None)]}
Transaction = tuple[str, int, list[tuple[str, int]]]  # source partition, position, rows as (table, key)


@st.composite
def transactions(draw: st.DrawFn) -> list[Transaction]:
    """Source transactions over two partitions and two tables; few keys, so that they come again."""
    keys = st.integers(0, draw(st.sampled_from([2, 9, 500])))
    rows = st.lists(st.tuples(st.sampled_from("tu"), keys), min_size=1, max_size=6)
    return [(draw(st.sampled_from("pq")), position, draw(rows)) for position in range(1, 1 + draw(st.integers(1, 12)))]


class Disk:
    """Takes so many bytes."""

    def __init__(self, room: int = 1 << 30) -> None:
        self.room, self.taken = room, 0

    def take(self, chunks: Sequence[Chunk]) -> bool:
        self.taken += sum(chunk.bytes for chunk in chunks)
        return self.taken <= self.room


def write(lane: LaneDriver, source: list[Transaction], pause: float = 0.0) -> None:
    number = 0
    for partition, position, rows in source:
        for table, key in rows:
            lane.write_rows(partition, table, [{"k": key, "n": (number := number + 1), "text": "x" * 20}])
        lane.end(partition, position)
        lane.clock.advance(pause)
        lane.settle()
    lane.finish()
    if lane.core.receipt is not None:
        lane.commit()


def loads_of(server: ModelServer, label: str) -> list[tuple[str, bytes]]:
    return (server.tasks.get(label) or server.history[label]).loads


def sent(server: ModelServer) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Rows by label, each with its table, of the StarRocks transactions that became visible."""
    loads: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for label in server.commits:
        loads[label] = [(table, row) for table, body in loads_of(server, label) for row in orjson.loads(body)]
    return loads


@given(transactions(), st.data())
def test_a_transaction_has_one_row_of_each_key_the_last_one_and_counts_add_up(
    source: list[Transaction], data: st.DataObject
) -> None:
    few = st.sampled_from([40, 100, 300, 100_000])
    limits = small_limits(
        buffer_bytes=data.draw(few),
        chunk_bytes=data.draw(st.sampled_from([30, 100, 1000])),
        load_bytes=data.draw(st.sampled_from([1, 100, 1000])),
        body_bytes=data.draw(few),
    )
    disk, server, hold = Disk(), ModelServer(), data.draw(st.booleans())
    lane = LaneDriver(server, limits, seed=data.draw(st.integers(0, 99)), keys=KEYS, spill=disk.take, hold=hold)
    write(lane, source, pause=data.draw(st.sampled_from([0.0, 1.0])))
    if not hold and isinstance(lane.core.error, KeyRepeated):  # the driver has the lanes run again and hold their rows
        assert server.commits == []
        return
    assert lane.core.error is None
    assert lane.core.buffer.buffered_bytes == 0
    source_rows = {
        number: (partition, table, key)
        for number, (partition, table, key) in enumerate(
            ((partition, table, key) for partition, _, rows in source for table, key in rows), start=1
        )
    }
    last_label: dict[int, int] = {}
    for rows in sent(server).values():
        keyed = [row["k"] for table, row in rows if table == "t"]
        assert len(keyed) == len(set(keyed))
        for table, row in rows:
            assert source_rows[row["n"]][1:] == (table, row["k"])
            if table == "t":
                last_label[row["k"]] = max(last_label.get(row["k"], 0), row["n"])
    last = {(partition, key): number for number, (partition, table, key) in source_rows.items() if table == "t"}
    for key, number in last_label.items():
        assert number == last[(source_rows[number][0], key)]  # the order between source partitions is open
    assert last_label.keys() == {key for _, key in last}
    counts: Counter[tuple[str, str]] = Counter()
    receipt = lane.core.receipt
    assert receipt is not None
    for region in receipt.regions:
        counts[(region.partition, region.table)] += region.rows + region.compacted
    assert counts == Counter((partition, table) for partition, table, _ in source_rows.values())
    assert receipt.rows == sum(map(len, sent(server).values()))
    assert receipt.bytes == sum(len(body) - 1 for _, body in loads_of(server, LABEL))


def receipt_of(lane: LaneDriver) -> Receipt:
    assert lane.core.receipt is not None
    return lane.core.receipt


def one_source_transaction(keys: Sequence[int]) -> list[Transaction]:
    return [("p", 1, [("t", key) for key in keys])]


def test_a_key_that_comes_again_after_a_load_ends_the_lane_and_held_rows_have_it_once() -> None:
    source = [*one_source_transaction([1]), ("p", 2, [("t", 2)]), ("p", 3, [("t", 1)])]
    limits = small_limits(load_bytes=1, chunk_bytes=30)
    lane = LaneDriver(ModelServer(), limits, keys=KEYS, spill=Disk().take)
    write(lane, source, pause=1.0)
    assert isinstance(lane.core.error, KeyRepeated)
    assert lane.unique.repeated
    held_lane = LaneDriver(ModelServer(), limits, keys=KEYS, spill=Disk().take, hold=True)
    write(held_lane, source, pause=1.0)
    receipt = receipt_of(held_lane)
    assert (receipt.rows, receipt.compacted) == (2, 1)


def test_keys_that_never_come_again_are_loaded_as_they_come() -> None:
    server = ModelServer()
    lane = LaneDriver(server, small_limits(load_bytes=1, chunk_bytes=30), keys=KEYS, spill=Disk().take)
    write(lane, [("p", position, [("t", position)]) for position in range(1, 20)], pause=1.0)
    assert receipt_of(lane).loads > 2
    assert not lane.unique.repeated


def test_rows_that_are_held_back_and_do_not_fit_go_to_the_disk() -> None:
    disk, server = Disk(), ModelServer()
    limits = small_limits(buffer_bytes=200, chunk_bytes=60, body_bytes=100)
    lane = LaneDriver(server, limits, keys=KEYS, spill=disk.take, hold=True)
    write(lane, one_source_transaction([*range(20), *range(10)]))
    receipt = receipt_of(lane)
    assert (receipt.rows, receipt.compacted) == (20, 10)
    assert disk.taken > 500
    assert lane.core.buffer.buffered_peak < 400


def test_a_full_disk_ends_a_lane_that_has_to_hold_its_rows() -> None:
    lane = LaneDriver(
        ModelServer(), small_limits(buffer_bytes=200, chunk_bytes=60), keys=KEYS, spill=Disk(300).take, hold=True
    )
    with pytest.raises(BufferFull):
        write(lane, one_source_transaction(range(40)))


def test_a_full_disk_costs_nothing_while_rows_need_not_be_held() -> None:
    limits = small_limits(load_bytes=1, chunk_bytes=30)
    lane = LaneDriver(ModelServer(), limits, keys=KEYS, spill=Disk(0).take)
    write(lane, one_source_transaction(range(20)))
    assert lane.core.error is None


def test_receipts_say_what_was_left_out() -> None:
    regions = (RegionCount("p", "t", 2, 20, 3), RegionCount("q", "t", 0, 0, 4))
    receipt = Receipt("l", 1, "j", 0, regions, (), 1, 1, 0, recycled=False)
    assert (receipt.rows, receipt.compacted) == (2, 7)
    assert Receipt.from_json(receipt.to_json()) == receipt
