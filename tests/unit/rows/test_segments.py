from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink.coordinator.model import PositionSpan, RegionRows
from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.protocol.ledger import Position
from starrocks_txn_sink.rows import segments
from starrocks_txn_sink.rows.columns import COLUMNS, PARTITION
from starrocks_txn_sink.rows.segments import Replay, Segmenter, list_runs, rows_of_part, runs_of
from tests.support.lane_rows import Row, batch, lanes


@given(lanes(), st.lists(st.integers(0, 60), max_size=6))
def test_segments_hold_every_row_of_a_region_once_and_in_order(rows: list[Row], cuts: list[int]) -> None:
    segmenter = Segmenter()
    bounds = sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})
    contents: dict[tuple[str, str], str] = {}
    counted_rows = ended = 0
    open_since_end: set[str] = set()
    for low, high in itertools.pairwise(bounds):
        for segment in segmenter.split(batch(rows[low:high])):
            if isinstance(segment, RegionRows):
                key = (segment.partition, segment.table)
                contents[key] = contents.get(key, "") + bytes(segment.piece).decode()
                counted_rows += segment.rows
                open_since_end.add(segment.partition)
            else:
                ended += segment.source_transactions
                open_since_end.discard(segment.partition)
    want: dict[tuple[str, str], str] = {}
    for partition, _, table, _, payload in rows:
        want[(partition, table)] = want.get((partition, table), "") + payload
    assert contents == want
    assert counted_rows == len(rows)
    assert ended == sum(row[3] for row in rows)
    assert not open_since_end


@given(lanes())
def test_marks_tell_where_each_row_lies(rows: list[Row]) -> None:
    marks: list[tuple[str, int, str, str]] = []
    for segment in Segmenter(with_row_index=True).split(batch(rows)):
        if isinstance(segment, RegionRows):
            assert segment.row_index is not None
            contents = [row.decode() for row in segment.row_index.rows(segment.piece)]
            places = [(segment.partition, int(at), segment.table) for at in segment.row_index.positions]
            marks += [(*place, content) for place, content in zip(places, contents, strict=True)]
    assert sorted(marks) == sorted((name, at, table, content) for name, at, table, _, content in rows)


def test_the_open_rest_of_a_batch_comes_after_its_whole_transactions() -> None:
    rows = [("a", 1, "t", True, ",1"), ("a", 2, "u", False, ",2"), ("a", 2, "t", False, ",3")]
    segments = list(Segmenter().split(batch(rows)))
    assert [type(segment) for segment in segments] == [RegionRows, PositionSpan, RegionRows, RegionRows]
    assert isinstance(segments[1], PositionSpan)
    assert (segments[1].first, segments[1].last, segments[1].source_transactions) == (1, 1, 1)


def test_spans_name_the_first_and_last_position_of_a_run() -> None:
    rows = [("a", position, "t", True, ",1") for position in (3, 5, 9)]
    last = list(Segmenter().split(batch(rows)))[-1]
    assert isinstance(last, PositionSpan)
    assert (last.partition, last.first, last.last, last.source_transactions) == ("a", 3, 9, 3)


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([("a", 1, "t", False, ","), ("a", 2, "t", True, ",")], "position 1 of source partition a has no row marked"),
        ([("a", 1, "t", False, ","), ("b", 2, "t", True, ",")], "position 1 of source partition a has no row marked"),
        ([("a", 2, "t", True, ","), ("a", 1, "t", True, ",")], "1 came after 2"),
        ([("a", 2, "t", True, ","), ("a", 2, "t", True, ",")], "come after the row that is marked as the end"),
    ],
)
def test_torn_and_unordered_rows_are_refused_with_their_place(rows: list[Row], text: str) -> None:
    with pytest.raises(InputError, match=text):
        list(Segmenter().split(batch(rows)))
    segmenter = Segmenter()
    with pytest.raises(InputError, match=text):  # the same over a batch border
        _ = [list(segmenter.split(batch([row]))) for row in rows]


@pytest.mark.parametrize("column", range(5))
def test_a_null_is_refused_with_its_place_and_without_its_content(column: int) -> None:
    row: list[Any] = ["a", 7, "t", True, ",secret"]
    row[column] = None
    with pytest.raises(InputError, match=f"Column {COLUMNS[column]} is NULL") as failure:
        list(Segmenter().split(batch([tuple(row)])))
    assert "secret" not in str(failure.value)
    if column != 1:
        assert "position 7" in str(failure.value)


def test_a_sliced_batch_and_large_strings_keep_their_bytes() -> None:
    rows = [("a", n, "t", True, f",{n}") for n in range(10)]
    sliced = batch(rows).slice(3, 4)
    (region_rows, _) = Segmenter().split(sliced)
    assert isinstance(region_rows, RegionRows)
    assert bytes(region_rows.piece) == b",3,4,5,6"
    wide = batch(rows).set_column(4, "payload", pa.array([row[4] for row in rows], pa.large_string()))
    (region_rows, _) = Segmenter().split(wide)
    assert isinstance(region_rows, RegionRows)
    assert bytes(region_rows.piece) == "".join(row[4] for row in rows).encode()


NAMES = st.lists(st.tuples(st.sampled_from(["a", "b", "ab", "ba", "", "p-10"]), st.integers(1, 3)), max_size=4)


@given(NAMES, st.integers(0, 3), st.sampled_from([pa.string(), pa.large_string()]))
def test_runs_of_source_partitions_are_those_of_a_plain_loop(
    parts: list[tuple[str, int]], skipped: int, kind: pa.DataType
) -> None:
    names = [name for name, count in parts for _ in range(count)]
    column = pa.array([*["a"] * skipped, *names], kind).slice(skipped)
    runs, low = [], 0
    for name, same in itertools.groupby(names):
        high = low + len(list(same))
        runs.append((name, low, high))
        low = high
    assert list_runs(runs_of(pa.RecordBatch.from_arrays([column], names=[PARTITION]))) == runs


def whole_pieces(batches: list[pa.RecordBatch]) -> list[RegionRows]:
    segmenter = Segmenter(with_row_index=True)
    return [rows for batch in batches for rows in segmenter.split(batch) if isinstance(rows, RegionRows)]


@pytest.mark.parametrize("tables", [["quiet"] * 3 + ["busy"] * 97, ["busy"] * 50 + ["quiet"] + ["busy"] * 49])
def test_a_small_piece_does_not_keep_its_batch_in_memory(tables: list[str]) -> None:
    rows = [("a", 1, table, False, f",{number:0100}") for number, table in enumerate(tables)]
    pieces = {piece.table: piece for piece in whole_pieces([batch(rows)])}
    quiet, busy = pieces["quiet"], pieces["busy"]
    assert len(memoryview(quiet.piece.obj)) == quiet.piece.nbytes
    assert len(memoryview(busy.piece.obj)) > busy.piece.nbytes
    assert quiet.row_index is not None
    assert quiet.row_index.positions.base is None
    assert quiet.row_index.offsets.base is None
    assert [bytes(row) for row in quiet.row_index.rows(quiet.piece)] == [
        content.encode() for _, _, table, _, content in rows if table == "quiet"
    ]


@given(lanes(), st.integers(1, 200))
def test_a_large_batch_is_split_as_its_slices_would_be(rows: list[Row], size: int) -> None:
    whole = batch(rows)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(segments, "SLICE_BYTES", size)
        slices = list(segments.slices_of(whole))
        split_segments = list(Segmenter().split(whole))
    assert pa.Table.from_batches(slices, whole.schema).equals(pa.Table.from_batches([whole]))
    segmenter = Segmenter()
    assert split_segments == [segment for part in slices for segment in segmenter.split(part)]


# --- a part of the rows, for the quarantine ---


@given(lanes(), st.lists(st.integers(0, 60), max_size=4), st.dictionaries(st.sampled_from("abcde"), st.integers(0, 60)))
def test_the_rows_up_to_positions_are_those_and_no_others(
    rows: list[Row], cuts: list[int], upto: dict[str, int]
) -> None:
    bounds = sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})
    parts = [rows_of_part(batch(rows[low:high]), {}, upto) for low, high in itertools.pairwise(bounds)]
    rows_found = [tuple(row.values()) for part in parts for row in part.to_pylist()]
    assert rows_found == [row for row in rows if row[0] in upto and row[1] <= upto[row[0]]]


def ends_of(rows: list[Row]) -> dict[str, list[int]]:
    ends: dict[str, list[int]] = {}
    for partition, position, _, ended, _ in rows:
        if ended:
            ends.setdefault(partition, []).append(position)
    return ends


def keep_all(rows: pa.RecordBatch, _runs: Any, _positions: Any, _begun: Any) -> tuple[pa.RecordBatch, None]:
    return rows, None


@given(lanes(), st.lists(st.integers(0, 60), max_size=4), st.integers(2, 7))
def test_cuts_are_ends_of_source_transactions_spread_evenly_and_the_last_one(
    rows: list[Row], cuts: list[int], most: int
) -> None:
    segmenter = Segmenter(set_aside=keep_all)
    bounds = sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})
    for low, high in itertools.pairwise(bounds):
        list(segmenter.split(batch(rows[low:high])))
    after_all = {partition: 10**9 for partition, *_ in rows}
    assert segmenter.cuts(1000, after_all) == ends_of(rows)
    few = segmenter.cuts(most, after_all)
    assert few.keys() == ends_of(rows).keys()
    for partition, ends in ends_of(rows).items():
        ends_found = few[partition]
        assert ends_found == sorted(set(ends_found).intersection(ends))
        assert len(ends_found) == min(most, len(ends))
        assert ends_found[-1] == ends[-1]


def test_cuts_are_those_of_new_rows() -> None:
    replay = Replay({"p": Position("p", 2, "c", 1, "l", 1, "")})
    segmenter = Segmenter(replay, set_aside=keep_all)
    list(segmenter.split(batch([("p", position, "t", True, ",1") for position in (1, 2, 3, 4)])))
    assert segmenter.cuts(100, {"p": 4, "q": 1}) == {"p": [3, 4]}
    assert segmenter.cuts(100, {"p": 3}) == {"p": [3]}


def test_cuts_are_those_of_suspected_tables_and_never_of_what_is_set_aside() -> None:
    def set_aside(rows: pa.RecordBatch, _runs: Any, positions: Any, _begun: Any) -> tuple[pa.RecordBatch, Any]:
        return rows, positions == 4

    segmenter = Segmenter(set_aside=set_aside, suspected=frozenset({"u", "v"}))
    rows = [("p", 1, "u", False, ",1"), ("p", 1, "t", True, ",1"), ("p", 2, "t", True, ",1")]
    rows += [("p", 3, "v", True, ",1"), ("p", 4, "v", True, ",1")]
    list(segmenter.split(batch(rows)))
    assert segmenter.cuts(100, {"p": 4}) == {"p": [1, 3]}
