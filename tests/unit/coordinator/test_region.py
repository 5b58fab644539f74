from __future__ import annotations

from hypothesis import given, strategies as st

from starrocks_txn_sink.coordinator.model import Region, RegionRows


def rows(region: Region, data: bytes, count: int = 1) -> None:
    region.write(RegionRows(region.partition, region.table, memoryview(data), count))


def test_the_first_source_transaction_is_frozen_at_once() -> None:
    region = Region("p0", "orders")
    rows(region, b"abc")
    region.end_transaction()
    assert region.freeze_due(now=0.0, mini_interval=0.1)


def test_later_ones_wait_for_the_mini_interval_and_share_a_chunk() -> None:
    region = Region("p0", "orders")
    rows(region, b"a")
    region.end_transaction()
    region.freeze(now=0.0)
    for data in (b"b", b"c"):
        rows(region, data)
        region.end_transaction()
        assert not region.freeze_due(now=0.09, mini_interval=0.1)
    assert region.freeze_due(now=0.1, mini_interval=0.1)
    chunk = region.freeze(now=0.1)
    assert chunk is not None
    assert b"".join(chunk.pieces) == b"bc"
    assert (chunk.rows, chunk.bytes) == (2, 2)


def test_nothing_is_due_inside_a_source_transaction() -> None:
    region = Region("p0", "orders")
    rows(region, b"a")
    assert not region.freeze_due(now=99.0, mini_interval=0.1)


def test_an_empty_region_has_nothing_to_freeze() -> None:
    region = Region("p0", "orders")
    assert region.freeze(now=1.0) is None
    assert region.last_freeze is None


@given(st.lists(st.tuples(st.sampled_from(["write", "end", "freeze"]), st.floats(0, 1)), max_size=60))
def test_every_byte_leaves_once_and_in_order(moves: list[tuple[str, float]]) -> None:
    region, now, appended, taken_bytes = Region("p", "t"), 0.0, b"", b""
    for number, (move, pause) in enumerate(moves):
        now += pause
        if move == "write":
            rows(region, data := bytes([number % 251]))
            appended += data
        elif move == "end":
            region.end_transaction()
            if region.freeze_due(now, 0.1) and (chunk := region.freeze(now)):
                taken_bytes += b"".join(chunk.pieces)
        elif chunk := region.freeze(now):
            taken_bytes += b"".join(chunk.pieces)
    last_chunk = region.freeze(now)
    assert taken_bytes + (b"".join(last_chunk.pieces) if last_chunk else b"") == appended
