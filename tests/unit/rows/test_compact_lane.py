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
from starrocks_txn_sink.protocol.wire import Operation, Request
from starrocks_txn_sink.rows.keys import KeyColumn
from tests.support.lane_driver import LaneDriver, small_limits
from tests.support.model_server import Fault, ModelServer

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


def loads_of(server: ModelServer, label: str) -> list[tuple[str, bytes]]:
    return (server.tasks.get(label) or server.history[label]).loads


def sent(server: ModelServer) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Rows by label, each with its table, of the StarRocks transactions that became visible."""
    found: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for label in server.commits:
        found[label] = [(table, row) for table, body in loads_of(server, label) for row in orjson.loads(body)]
    return found


@given(transactions(), st.data())
def test_a_transaction_has_one_row_of_each_key_the_last_one_and_counts_add_up(
    source: list[Transaction], data: st.DataObject
) -> None:
    few = st.sampled_from([40, 100, 300, 100_000])
    limits = small_limits(
        buffer_bytes=data.draw(few),
        chunk_bytes=data.draw(st.sampled_from([30, 100, 1000])),
        load_bytes=data.draw(st.sampled_from([1, 100, 1000])),
        retry_buffer_bytes=data.draw(few),
        body_bytes=data.draw(few),
        commit_interval=data.draw(st.sampled_from([None, 3.0])),
    )
    disk = Disk()
    server = ModelServer()
    lane = LaneDriver(
        server, limits, seed=data.draw(st.integers(0, 99)), keys=KEYS, spill=disk.take, hold=data.draw(st.booleans())
    )
    write(lane, source, pause=data.draw(st.sampled_from([0.0, 1.0])))
    assert lane.core.error is None
    assert lane.core.buffer.buffered_bytes == 0
    came = {
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
            assert came[row["n"]][1:] == (table, row["k"])
            if table == "t":
                last_label[row["k"]] = max(last_label.get(row["k"], 0), row["n"])
    last = {(partition, key): number for number, (partition, table, key) in came.items() if table == "t"}
    for key, number in last_label.items():
        assert number == last[(came[number][0], key)]  # the order between source partitions is open
    assert last_label.keys() == {key for _, key in last}
    counts: Counter[tuple[str, str]] = Counter()
    for receipt in lane.core.receipts:
        for region in receipt.regions:
            counts[(region.partition, region.table)] += region.rows + region.compacted
    assert counts == Counter((partition, table) for partition, table, _ in came.values())
    assert sum(receipt.rows for receipt in lane.core.receipts) == sum(map(len, sent(server).values()))
    bodies = [body for label in server.commits for _, body in loads_of(server, label)]
    assert sum(receipt.bytes for receipt in lane.core.receipts) == sum(len(body) - 1 for body in bodies)


def one_source_transaction(keys: Sequence[int]) -> list[Transaction]:
    return [("p", 1, [("t", key) for key in keys])]


def test_a_key_that_comes_again_after_a_load_has_the_transaction_repeated_with_all_of_its_rows() -> None:
    server = ModelServer()
    lane = LaneDriver(server, small_limits(load_bytes=1, chunk_bytes=30), keys=KEYS, spill=Disk().take)
    write(lane, [*one_source_transaction([1]), ("p", 2, [("t", 2)]), ("p", 3, [("t", 1)])], pause=1.0)
    (receipt,) = lane.core.receipts
    assert (receipt.rows, receipt.compacted, receipt.attempts) == (2, 1, 1)  # nothing failed
    assert len([each for each in server.requests if each.operation is Operation.BEGIN]) == 2
    assert lane.unique.repeated
    assert server.open_labels() == []


def test_keys_that_never_come_again_are_loaded_as_they_come() -> None:
    server = ModelServer()
    lane = LaneDriver(server, small_limits(load_bytes=1, chunk_bytes=30), keys=KEYS, spill=Disk().take)
    write(lane, [("p", position, [("t", position)]) for position in range(1, 20)], pause=1.0)
    (receipt,) = lane.core.receipts
    assert receipt.loads > 2
    assert not lane.unique.repeated


def test_rows_that_are_held_back_and_do_not_fit_go_to_the_disk() -> None:
    disk, server = Disk(), ModelServer()
    limits = small_limits(buffer_bytes=200, chunk_bytes=60, body_bytes=100)
    lane = LaneDriver(server, limits, keys=KEYS, spill=disk.take, hold=True)
    write(lane, one_source_transaction([*range(20), *range(10)]))
    (receipt,) = lane.core.receipts
    assert (receipt.rows, receipt.compacted) == (20, 10)
    assert disk.taken > 500
    assert lane.core.buffer.buffered_peak < 400


def test_a_full_disk_ends_a_lane_that_has_to_hold_its_rows() -> None:
    lane = LaneDriver(
        ModelServer(), small_limits(buffer_bytes=200, chunk_bytes=60), keys=KEYS, spill=Disk(300).take, hold=True
    )
    with pytest.raises(BufferFull):
        write(lane, one_source_transaction(range(40)))


def test_a_full_disk_costs_nothing_while_no_key_comes_again_and_else_the_attempt() -> None:
    limits = small_limits(retry_buffer_bytes=50, load_bytes=1, chunk_bytes=30)
    lane = LaneDriver(ModelServer(), limits, keys=KEYS, spill=Disk(0).take)
    write(lane, one_source_transaction(range(20)))
    assert lane.core.error is None
    server = ModelServer()
    lane = LaneDriver(server, limits, keys=KEYS, spill=Disk(0).take)
    write(lane, [*one_source_transaction(range(20)), ("p", 2, [("t", 1)])], pause=1.0)
    assert isinstance(lane.core.error, KeyRepeated)
    assert "temporary files" in str(lane.core.error)
    assert lane.core.receipts == []
    assert server.open_labels() == []


def test_a_failed_load_of_held_rows_is_repeated_in_the_same_order() -> None:
    failed: list[Request] = []

    def once(request: Request) -> Fault | None:
        if (
            request.operation is Operation.LOAD
            and len([r for r in server.requests if r.operation is Operation.LOAD]) == 3
        ):
            failed.append(request)
            return Fault.LOST_BEFORE
        return None

    server = ModelServer(faults=once)
    limits = small_limits(chunk_bytes=60, body_bytes=100, buffer_bytes=200, retry_buffer_bytes=100)
    lane = LaneDriver(server, limits, keys=KEYS, spill=Disk().take, hold=True)
    write(lane, one_source_transaction([*range(12), *range(6)]))
    (receipt,) = lane.core.receipts
    assert failed
    assert (receipt.rows, receipt.compacted, receipt.attempts) == (12, 6, 2)
    (rows,) = sent(server).values()
    assert sorted(row["n"] for _, row in rows) == list(range(7, 19))


def test_receipts_say_what_was_left_out() -> None:
    regions = (RegionCount("p", "t", 2, 20, 3), RegionCount("q", "t", 0, 0, 4))
    receipt = Receipt("l", 1, "j", 0, 0, regions, (), 1, 1, 0, recycled=False)
    assert (receipt.rows, receipt.compacted) == (2, 7)
    assert Receipt.from_json(receipt.to_json()) == receipt
