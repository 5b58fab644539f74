"""Which rows of a load are sent: against simple references in Python."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink.coordinator.model import Chunk, LoadAction, RowIndex
from starrocks_txn_sink.errors import KeyRepeated
from starrocks_txn_sink.rows import body
from starrocks_txn_sink.rows.body import UniqueRows, last_of_each
from starrocks_txn_sink.rows.keys import KeyColumn, read_keys
from tests.support.chunk_pieces import add_piece

INTEGER = KeyColumn.of("id", "BIGINT", None)


@given(st.lists(st.none() | st.integers(0, 5)), st.booleans())
def test_the_last_row_of_a_key_is_kept_and_each_row_without_one(keys: list[int | None], texts: bool) -> None:
    last = {key: row for row, key in enumerate(keys)}
    expected = [key is None or last[key] == row for row, key in enumerate(keys)]
    values = pa.array(keys, pa.int64())
    indexes = last_of_each(values.cast(pa.large_string()) if texts else values)
    assert (expected if indexes is None else indexes.tolist()) == expected
    assert indexes is None or not all(expected)


Change = tuple[str, int]  # source partition, key


@st.composite
def loads(draw: st.DrawFn) -> list[list[Chunk]]:
    """Loads of one table, made of chunks whose rows are numbered."""
    number = itertools.count()
    all_loads = []
    for _ in range(draw(st.integers(1, 5))):
        chunks = []
        for partition in draw(st.lists(st.sampled_from("pq"), min_size=1, max_size=3)):
            chunk = Chunk(partition, "t")
            for _ in range(draw(st.integers(1, 3))):
                keys = draw(st.lists(st.none() | st.integers(0, 30), min_size=1, max_size=9))
                add_piece(chunk, [(key, next(number)) for key in keys])
            chunks.append(chunk)
        all_loads.append(chunks)
    return all_loads


def rows_in(pieces: Sequence[memoryview]) -> list[dict[str, int]]:
    content = b"".join(pieces)
    rows: list[dict[str, int]] = json.loads(b"[" + content[1:] + b"]") if content else []
    return rows


def send(unique: UniqueRows, label: str, chunks: list[list[Chunk]], *, newest_first: bool) -> Iterator[dict[str, int]]:
    for load in reversed(chunks) if newest_first else chunks:
        selection = unique.select(LoadAction(label, "t", tuple(load), newest_first))
        rows_sent, rows_before = rows_in(selection.pieces), [row for chunk in load for row in rows_in(chunk.pieces)]
        assert len(rows_sent) + sum(total.rows for total in selection.replaced.values()) == len(rows_before)
        sizes = sum(chunk.bytes for chunk in load) - sum(piece.nbytes for piece in selection.pieces)
        assert sum(total.bytes for total in selection.replaced.values()) == sizes
        yield from rows_sent


@pytest.fixture(params=[None, 100])
def large_piece(request: pytest.FixtureRequest) -> Iterator[None]:
    """As it is, or with pieces that are large: rows are then read in place, but for the last ones."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param is not None:
            patch.setattr(body, "_LARGE_PIECE", request.param)
            patch.setattr(body, "ROOM", 16)
        yield


@pytest.mark.usefixtures("large_piece")
@given(loads())
def test_newest_first_leaves_the_last_row_of_each_key_however_many_loads(chunks: list[list[Chunk]]) -> None:
    everything = [row for load in chunks for chunk in load for row in rows_in(chunk.pieces)]
    last = {row["id"]: row["v"] for row in everything if "id" in row}
    all_rows = list(send(UniqueRows({"t": [INTEGER]}), "label", chunks, newest_first=True))
    assert sorted((row["id"], row["v"]) for row in all_rows if "id" in row) == sorted(last.items())
    assert sorted(row["v"] for row in all_rows if "id" not in row) == [
        row["v"] for row in everything if "id" not in row
    ]


@pytest.mark.usefixtures("large_piece")
@given(loads())
def test_in_order_a_key_that_comes_again_is_refused_and_else_nothing_is_missing(chunks: list[list[Chunk]]) -> None:
    keys = [{row["id"] for chunk in load for row in rows_in(chunk.pieces) if "id" in row} for load in chunks]
    again = any(keys_of_load & other_keys for keys_of_load, other_keys in itertools.combinations(keys, 2))
    unique = UniqueRows({"t": [INTEGER]})
    if again:
        with pytest.raises(KeyRepeated):
            list(send(unique, "label", chunks, newest_first=False))
    else:
        all_rows = list(send(unique, "label", chunks, newest_first=False))
        assert {row["id"] for row in all_rows if "id" in row} == set().union(*keys)
    assert unique.repeated is again


def test_loads_whose_keys_are_spelled_differently_know_each_other() -> None:
    unique = UniqueRows({"t": [INTEGER]})
    first, second = Chunk("p", "t"), Chunk("p", "t")
    add_piece(first, [(1, 0)])
    second.append(memoryview(b',{"id":"01"}'), 1, RowIndex(np.arange(1), np.array([0, 12])))
    unique.select(LoadAction("l", "t", (first,)))
    with pytest.raises(KeyRepeated):
        unique.select(LoadAction("l", "t", (second,)))


def test_each_table_has_keys_of_its_own() -> None:
    unique = UniqueRows({"t": [INTEGER], "u": [INTEGER]})
    chunks = {}
    for table in "tu":
        chunks[table] = Chunk("p", table)
        add_piece(chunks[table], [(1, 0)])
        unique.select(LoadAction("label", table, (chunks[table],)))
    with pytest.raises(KeyRepeated):
        unique.select(LoadAction("label", "t", (chunks["t"],)))


def test_rows_of_other_tables_are_sent_as_they_are() -> None:
    chunk = Chunk("p", "other", [memoryview(b',{"id":1},{"id":1}')], 2, 18, [None])
    assert UniqueRows({"t": [INTEGER]}).select(LoadAction("l", "other", (chunk,))).pieces == chunk.pieces


def test_the_keys_of_a_large_piece_are_read_without_a_copy_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[int] = []

    def read(text: Any, starts: Any, key: Any) -> Any:
        copied.append(0 if not text.flags.owndata and not text.flags.writeable else int(starts[-1]))
        return read_keys(text, starts, key)

    monkeypatch.setattr(body, "read_keys", read)
    chunk = Chunk("p", "t")
    for low in (0, 100_000):
        add_piece(chunk, [(number, number) for number in range(low, low + 100_000)])
    assert min(piece.nbytes for piece in chunk.pieces) > 1 << 20
    unique = UniqueRows({"t": [INTEGER]})
    assert rows_in(unique.select(LoadAction("l", "t", (chunk,))).pieces)[-1] == {"id": 199_999, "v": 199_999}
    assert copied.count(0) == 2  # and the rows at the end of each piece, which have no room behind them
    assert sum(copied) < 2000
