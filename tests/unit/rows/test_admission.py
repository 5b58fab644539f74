"""TableAdmission: whole source transactions come in while their tables have room."""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from starrocks_txn_sink.coordinator.model import PositionSpan, RegionRows
from starrocks_txn_sink.coordinator.table_room import Crowded, TableRoom
from starrocks_txn_sink.protocol.ledger import Position
from starrocks_txn_sink.rows import columns
from starrocks_txn_sink.rows.admission import TableAdmission
from starrocks_txn_sink.rows.segments import Replay, Segmenter

Row = tuple[str, int, str]  # source partition, position, table


def batches(rows: list[Row], size: int) -> Iterable[pa.RecordBatch]:
    """Rows of whole source transactions, `size` a batch."""
    ends = [number + 1 == len(rows) or rows[number][:2] != rows[number + 1][:2] for number in range(len(rows))]
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        yield pa.RecordBatch.from_pydict(
            {
                columns.PARTITION: pa.array([row[0] for row in part]),
                columns.POSITION: pa.array([row[1] for row in part], pa.int64()),
                columns.TABLE: pa.array([row[2] for row in part]),
                columns.PAYLOAD: pa.array([",{}" for _ in part]),
                columns.TRANSACTION_END: pa.array(ends[start : start + size]),
            }
        )


def run(rows: list[Row], room: TableRoom, size: int = 100, committed: dict[str, int] | None = None) -> Any:
    """Tables and last positions that came in, by source partition, and the admission."""
    positions = {name: Position(name, at, "c", 0, "l", 0, "") for name, at in (committed or {}).items()}
    admission = TableAdmission(room, positions)
    segmenter = Segmenter(Replay(positions), admission=admission)
    tables: dict[str, set[str]] = {}
    last: dict[str, int] = {}
    for batch in batches(rows, size):
        for segment in segmenter.split(batch):
            if isinstance(segment, RegionRows):
                tables.setdefault(segment.partition, set()).add(segment.table)
            else:
                assert isinstance(segment, PositionSpan)
                last[segment.partition] = segment.last
    return tables, last, admission


ROWS: list[Row] = [
    *[("p", 1, "a"), ("p", 1, "b"), ("p", 2, "a"), ("p", 3, "c"), ("p", 3, "a"), ("p", 4, "a"), ("p", 5, "d")],
    *[("q", 1, "b"), ("q", 2, "c"), ("q", 2, "d"), ("q", 3, "b")],
]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_rows_behind_the_first_source_transaction_without_room_wait(size: int) -> None:
    tables, last, admission = run(ROWS, TableRoom(2, frozenset("ab")), size)
    assert tables == {"p": {"a", "b"}, "q": {"b"}}
    assert last == {"p": 2, "q": 1}
    assert admission.left == {"p": [["a", "c"], ["d"]], "q": [["c", "d"], ["b"]]}


def test_without_names_the_first_tables_have_room() -> None:
    tables, last, admission = run(ROWS, TableRoom(3))
    assert tables == {"p": {"a", "b", "c"}, "q": {"b"}}
    assert last == {"p": 4, "q": 1}
    assert admission.knows_enough is False
    assert run(ROWS, TableRoom(4))[2].left == {}


def test_visible_rows_need_no_room() -> None:
    tables, last, _ = run(ROWS, TableRoom(2), committed={"p": 4, "q": 1})
    assert tables == {"p": {"d"}, "q": {"c", "d"}}
    assert last == {"p": 5, "q": 2}
    tables, last, _ = run(ROWS, TableRoom(3), committed={"p": 4, "q": 1})
    assert tables == {"p": {"d"}, "q": {"b", "c", "d"}}


def test_a_source_transaction_that_is_sent_in_part_has_to_wait_as_a_whole() -> None:
    rows: list[Row] = [("p", 1, "a"), *[("p", 2, table) for table in "ab"], ("p", 3, "a")]
    with pytest.raises(Crowded) as crowded:
        run(rows, TableRoom(1), size=2)
    assert crowded.value.waits == {"p": 1}
    tables, last, admission = run(rows, TableRoom(1, waits={"p": 1}), size=2)
    assert (tables, last) == ({"p": {"a"}}, {"p": 1})
    assert admission.left == {"p": [["a", "b"]]}


def test_a_room_that_is_full_of_what_waits_needs_to_know_no_more() -> None:
    assert run(ROWS, TableRoom(1, frozenset("a")))[2].knows_enough


@st.composite
def lanes(draw: st.DrawFn) -> list[Row]:
    rng = random.Random(draw(st.integers(0, 2**32)))
    return [
        (f"p{partition}", position, rng.choice("abcdefg"))
        for partition in range(rng.randint(1, 3))
        for position in range(1, rng.randint(2, 7))
        for _ in range(rng.randint(1, 3))
    ]


@settings(deadline=None)
@given(rows=lanes(), most=st.integers(1, 5), size=st.integers(1, 9), names=st.booleans())
def test_what_comes_in_are_whole_source_transactions_of_few_tables(
    rows: list[Row], most: int, size: int, names: bool
) -> None:
    room = TableRoom(most, frozenset("abcdefg"[:most] if names else ""))
    for _ in range(10):  # once for each source partition, and source transaction before the one that waits
        with suppress(Crowded):
            tables, last, admission = run(rows, room, size)
            break
        with pytest.raises(Crowded) as crowded:
            run(rows, room, size)
        room = TableRoom(most, room.names, {**room.waits, **crowded.value.waits})
    assert len(set().union(*tables.values())) <= most
    for partition in {row[0] for row in rows}:
        own = [row for row in rows if row[0] == partition]
        came = {row[2] for row in own if row[1] <= last.get(partition, 0)}
        assert came == tables.get(partition, set())
        first_left = [row for row in own if row[1] > last.get(partition, 0)]
        assert bool(first_left) == (partition in admission.left)
        if first_left:
            ahead = admission.left[partition]
            assert set(ahead[0]) == {row[2] for row in first_left if row[1] == first_left[0][1]}
            assert {table for group in ahead for table in group} == {row[2] for row in first_left}
