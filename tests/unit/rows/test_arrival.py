"""Ready rows as they come: what the lane reads of them is what it would read had they been sorted first."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink.coordinator.model import PositionSpan, RegionRows
from starrocks_txn_sink.errors import InputError, Unordered
from starrocks_txn_sink.rows.arrival import ArrivalOrder
from starrocks_txn_sink.rows.columns import SEQ
from starrocks_txn_sink.rows.segments import Segmenter
from tests.support.lane_rows import Row, lanes

Arriving = tuple[str, int, int, str, bool, str]
FIELDS = [
    ("source_partition", pa.string()),
    ("position", pa.int64()),
    (SEQ, pa.int32()),
    ("table", pa.string()),
    ("transaction_end", pa.bool_()),
    ("payload", pa.string()),
]


def batch(rows: Iterable[Any]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) or [()] * len(FIELDS)
    arrays = [pa.array(list(column), kind) for column, (_, kind) in zip(columns, FIELDS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in FIELDS])


def with_seq(rows: list[Row]) -> list[Arriving]:
    """Rows with their number within their source transaction."""
    numbered: list[Arriving] = []
    for _, group in itertools.groupby(rows, key=lambda row: row[:2]):
        numbered += [(*row[:2], seq, *row[2:]) for seq, row in enumerate(group)]
    return numbered


def told(order: ArrivalOrder, batches: Iterable[pa.RecordBatch]) -> tuple[dict[Any, str], dict[str, list[Any]]]:
    """The bytes of each region, and each source partition's ends, as the segmenter tells them."""
    segmenter, regions, ends = Segmenter(), dict[Any, str](), dict[str, list[Any]]()
    for rows in order.rows(batches):
        for segment in segmenter.split(rows):
            match segment:
                case RegionRows(partition, table, piece):
                    regions[(partition, table)] = regions.get((partition, table), "") + bytes(piece).decode()
                case PositionSpan(partition, first, last, count):
                    ends.setdefault(partition, []).append((first, last, count))
    return regions, ends


@st.composite
def arrivals(draw: st.DrawFn) -> tuple[list[Row], list[list[Arriving]]]:
    """The sorted rows of a lane, and batches in which each source partition's come in order, mixed with others'."""
    rows = draw(lanes())
    queues = [list(group) for _, group in itertools.groupby(with_seq(rows), key=lambda row: row[0])]
    mixed: list[Arriving] = []
    while queues:
        queue = draw(st.sampled_from(queues))
        count = draw(st.integers(1, 6))
        mixed += queue[:count]
        del queue[:count]
        queues = [queue for queue in queues if queue]
    cuts = sorted({0, len(mixed), *draw(st.lists(st.integers(0, len(mixed)), max_size=8))})
    return rows, [mixed[low:high] for low, high in itertools.pairwise(cuts)]


@given(arrivals(), st.sampled_from([0, 1, 200, 1 << 20]))
def test_mixed_source_partitions_are_read_as_if_they_had_been_sorted(
    case: tuple[list[Row], list[list[Arriving]]], held_bytes: int
) -> None:
    rows, batches = case
    expected = told(ArrivalOrder(), [batch(with_seq(rows))])
    order = ArrivalOrder(small_rows=0, held_bytes=held_bytes)
    try:
        regions, ends = told(order, [*map(batch, batches)])
    except Unordered as refused:
        assert "came mixed" in refused.message  # noqa: PT017 - the only reason there may be
        assert held_bytes < 1 << 20
        return
    assert regions == expected[0]
    assert {name: sum(count for _, _, count in spans_of_partition) for name, spans_of_partition in ends.items()} == {
        name: sum(count for _, _, count in spans_of_partition) for name, spans_of_partition in expected[1].items()
    }
    for spans_of_partition in ends.values():
        spans = [(first, last) for first, last, _ in spans_of_partition]
        assert spans == sorted(spans)


@given(lanes(), st.randoms())
def test_few_rows_may_come_in_any_order(rows: list[Row], random: Any) -> None:
    shuffled = with_seq(rows)
    random.shuffle(shuffled)
    assert told(ArrivalOrder(), [batch(shuffled[:3]), batch(shuffled[3:])]) == told(
        ArrivalOrder(), [batch(with_seq(rows))]
    )


ORDERED = [("a", 1, 0, "t", False, ",1"), ("a", 1, 1, "t", True, ",2"), ("a", 2, 0, "t", True, ",3")]


@pytest.mark.parametrize(
    ("order", "text"),
    [
        ((2, 0, 1), "partition a did not come in order: position 1 came after 2"),
        ((1, 0, 2), "partition a, position 1, did not come by seq"),
    ],
)
def test_many_rows_out_of_order_are_noticed_also_over_batches(order: tuple[int, ...], text: str) -> None:
    rows = [ORDERED[at] for at in order]
    with pytest.raises(Unordered, match=text):
        told(ArrivalOrder(small_rows=0), [batch(rows)])
    with pytest.raises(Unordered, match=text):
        told(ArrivalOrder(small_rows=0), [*(batch([row]) for row in rows)])
    between = ("b", 1, 0, "t", False, ",4")
    with pytest.raises(Unordered, match=text):
        told(ArrivalOrder(small_rows=0), [*(batch([row, between]) for row in rows)])


def test_many_rows_are_refused_when_only_few_may_come() -> None:
    with pytest.raises(Unordered, match="more than 2 rows"):
        told(ArrivalOrder(small_rows=2, small_only=True), [batch(ORDERED)])
    assert told(ArrivalOrder(small_rows=3, small_only=True), [batch(ORDERED)])[0] == {("a", "t"): ",1,2,3"}


def test_a_huge_source_transaction_goes_on_while_others_wait() -> None:
    """Of two unfinished ones only one may be read at a time; the other's rows wait until it has ended."""
    huge = [("a", 9, seq, "t", False, "," + "x" * 1000) for seq in range(40)]
    small = [("b", 1, 0, "t", False, ",b"), ("b", 1, 1, "t", True, ",b"), ("b", 2, 0, "t", False, ",b")]
    order = ArrivalOrder(small_rows=0, held_bytes=5000)
    pieces: list[list[str]] = []
    batches = [*(batch([*huge[at : at + 10], *small[:1]][: 11 - bool(at)]) for at in range(0, 40, 10))]
    last = batch([*small[1:], ("a", 9, 40, "t", True, ",end"), ("b", 2, 1, "t", True, ",b")])
    for rows in order.rows([*batches, last]):
        pieces.append(rows.column(0).to_pylist())
        assert len(set(pieces[-1])) == 1
    assert [piece[0] for piece in pieces] == ["a", "a", "a", "a", "a", "b"]
    assert [len(piece) for piece in pieces] == [10, 10, 10, 10, 1, 4]


def test_two_huge_source_transactions_that_come_mixed_are_sorted_instead() -> None:
    mixed = [(name, 9, seq, "t", False, "," + "x" * 1000) for seq in range(40) for name in "ab"]
    with pytest.raises(Unordered, match="came mixed"):
        told(ArrivalOrder(small_rows=0, held_bytes=5000), [batch(mixed[:40]), batch(mixed[40:])])


def test_a_source_transaction_without_an_end_is_refused_as_ever() -> None:
    cut_rows = [("a", 1, 0, "t", False, ",1"), ("b", 1, 0, "t", False, ",2")]
    with pytest.raises(InputError, match="position 1 of source partition a has no row marked as its end"):
        told(ArrivalOrder(small_rows=0), [batch(cut_rows)])


@pytest.mark.parametrize("small_rows", [0, 100])
@pytest.mark.parametrize("column", [0, 1, 3, 4, 5])
def test_a_null_is_refused_with_its_place(small_rows: int, column: int) -> None:
    row: list[Any] = list(ORDERED[1])
    row[column] = None
    with pytest.raises(InputError, match=f"Column {FIELDS[column][0]} is NULL"):
        told(ArrivalOrder(small_rows), [batch([ORDERED[0], row])])
    assert told(ArrivalOrder(small_rows), [batch([(*ORDERED[2][:2], None, *ORDERED[2][3:])])])[1] == {"a": [(2, 2, 1)]}
