"""Keys of rows, and which rows are sent: against simple references in Python."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from starrocks_txn_sink.coordinator.actions import LoadAction
from starrocks_txn_sink.coordinator.region import Chunk, RowIndex
from starrocks_txn_sink.errors import KeyRepeated
from starrocks_txn_sink.rows.keys import KeyColumn, KeyType, SpillFile, UniqueRows, last_of_each, read_keys

INTEGER, TEXT = KeyColumn.of("id", "BIGINT", None), KeyColumn.of("name", "VARCHAR", None)


def text_and_starts(
    rows: Sequence[bytes], separator: bytes = b","
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    lines = [separator + row for row in rows]
    starts = np.array([0, *itertools.accumulate(map(len, lines))])
    return np.frombuffer(b"".join(lines), np.uint8).copy(), starts


def keys_of(rows: Sequence[str | bytes], *key: KeyColumn, separator: bytes = b",") -> list[Any]:
    content = [row.encode() if isinstance(row, str) else row for row in rows]
    found: list[Any] = read_keys(*text_and_starts(content, separator), key).to_pylist()
    return found


# --- one form for all texts of a value ---


@pytest.mark.parametrize(
    ("kind", "same", "other", "not_comparable"),
    [
        ("INT", ["1", " 1 ", "1.0", "+1", "001", "true"], ["-1", "10", "0"], ["1.5", "1e0", "", "one", "-"]),
        ("BIGINT", ["0", "-0", "0.000", "false"], ["1"], ["0x0"]),
        ("LARGEINT", [str(2**127 - 1), f"{2**127 - 1}.0"], [str(2**127 - 2)], ["1e38"]),
        ("BOOLEAN", ["1", "true", "TRUE", "7"], ["0", "false"], ["yes"]),
        ("DECIMAL", ["1.5", "1.50", "01.500"], ["1.51", "-1.5"], ["1.505", "15e-1"]),
        ("VARCHAR", ["a"], ["A", "a ", " a", ""], []),
        ("DATE", ["2026-01-02", "2026/1/2", "20260102", "2026-01-02 00:00:00"], ["2026-01-20"], ["02.01.2026"]),
        (
            "DATETIME",
            ["2026-01-02 03:04:05", "2026-01-02T03:04:05.0", "2026-1-2 3:4:5.000000", "20260102030405"],
            ["2026-01-02 03:04:05.1", "2026-01-02"],
            ["2026-01-02 03:04:05.0000001", "2026-01-02 03:04:05+01"],
        ),
    ],
)
def test_texts_of_one_value(kind: str, same: list[str], other: list[str], not_comparable: list[str]) -> None:
    column = KeyColumn.of("k", kind, 2)
    forms = {column.comparable(text) for text in same}
    assert len(forms) == 1
    assert None not in forms
    assert not forms & {column.comparable(text) for text in other}
    assert {column.comparable(text) for text in not_comparable} <= {None}


@given(
    st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-99999, max_value=99999), st.integers(0, 3)
)
def test_numbers_are_the_same_key_exactly_when_they_are_equal(number: Decimal, zeros: int) -> None:
    column = KeyColumn("k", KeyType.DECIMAL, 4)
    form = column.comparable(f"{number:f}" + "0" * zeros)
    assert form is not None
    assert Decimal(form) == number
    assert form == column.comparable(form)


@given(st.sampled_from(list(KeyType)), st.text(max_size=12) | st.from_regex(r"[0-9+\-. :/T]{0,20}", fullmatch=True))
def test_any_text_has_a_form_that_is_its_own_form_or_none(key_type: KeyType, text: str) -> None:
    column = KeyColumn("k", key_type, 3)
    form = column.comparable(text)
    assert form is None or column.comparable(form) == form


@given(
    st.sampled_from(list(KeyType)),
    st.lists(st.from_regex(r"[0-9+\-. :/T]{0,6}|2026-01-0[12]( 03:04:05(\.0{1,6})?)?|true|false", fullmatch=True)),
)
def test_many_texts_have_the_forms_that_each_has_alone(key_type: KeyType, texts: list[str]) -> None:
    column = KeyColumn("k", key_type, 2, "k")
    rows = [json.dumps({"k": text}) for text in texts]
    if rows:
        forms = [column.comparable(text) for text in texts]
        expected = [f"?{text}" if form is None else form for form, text in zip(forms, texts, strict=True)]
        assert list(map(str, keys_of(rows, column))) == expected


# --- keys in rows ---

NUMBERS = st.integers(-5, 5) | st.integers(-(2**70), 2**70)
SPELLED = NUMBERS | NUMBERS.map(str) | st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(max_size=5) | st.sampled_from(["a", "1:a", ""])


def expected_key(row: dict[str, Any], *key: KeyColumn) -> list[str] | None:
    """The key's values in one form; None for a row without a key."""
    found = []
    for column in key:
        value = json.loads(json.dumps(row.get(column.field)), parse_int=str, parse_float=str)
        text = str(value).lower() if isinstance(value, bool) else value
        if not isinstance(text, str):
            return None
        form = column.comparable(text)
        found.append(f"?{text}" if form is None else form)
    return found


@given(st.lists(st.fixed_dictionaries({}, optional={"id": SPELLED, "name": TEXTS, "v": TEXTS}), min_size=1, max_size=8))
def test_two_rows_have_one_key_exactly_if_its_values_have_one_form(rows: list[dict[str, Any]]) -> None:
    for key in ((INTEGER,), (TEXT,), (INTEGER, TEXT), (TEXT, INTEGER)):
        found = keys_of([json.dumps(row) for row in rows], *key)
        wanted = [expected_key(row, *key) for row in rows]
        assert [each is None for each in found] == [each is None for each in wanted]
        for one, other in itertools.combinations(range(len(rows)), 2):
            if wanted[one] is not None:
                assert (found[one] == found[other]) == (wanted[one] == wanted[other])


def test_integers_stay_numbers_and_need_no_python_per_row() -> None:
    text, starts = text_and_starts([b'{"v":"x","id":%d}' % number for number in (3, 1, 2)])
    assert read_keys(text, starts, [INTEGER]).type == pa.int64()


VALUES = (
    st.integers(-(10**19), 10**19).map(str)
    | st.integers(-9, 99).map(str)
    | st.sampled_from(
        ["-0", "0", "1.0", "1e3", '"7"', "null", "true", "{}", "-1.5", "01", "-", "", '""', '"a\\"b"', '"1']
    )
    | st.text(st.sampled_from('ab":,}é\\'), max_size=70).map(json.dumps)
    | st.text("x", min_size=60, max_size=70).map(json.dumps)
)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(['{"id":', '{"__op":1,"id":', '{"idx":1,"id":', '{"v":2,"id":', '{ "id":']),
            VALUES,
            st.sampled_from([',"name":', ',"v":1,"name":', ' ,"name":']),
            VALUES,
            st.sampled_from(["}", ',"v":1}', ' ,"id2":3}', " }", ',"v":{"id":5}}']),
        ),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([(INTEGER,), (TEXT,), (INTEGER, TEXT), (TEXT, INTEGER)]),
)
def test_members_that_come_first_are_read_as_any_others(
    parts: list[tuple[str, ...]], key: tuple[KeyColumn, ...]
) -> None:
    rows = ["".join(part) for part in parts]
    wanted = []
    for row in rows:
        try:
            wanted.append(expected_key(json.loads(row, parse_int=str, parse_float=str), *key))
        except ValueError:
            wanted.append(None)
    found = keys_of(rows, *key)
    for one, other in itertools.product(range(len(rows)), repeat=2):
        assert (found[one] is None) == (wanted[one] is None)
        if wanted[one] is not None:
            assert (found[one] == found[other]) == (wanted[one] == wanted[other])
    if len(key) == 1:
        assert [None if each is None else [str(each)] for each in found] == wanted


def test_a_long_name_is_read_to_the_end() -> None:
    column = KeyColumn.of("n" * 500, "BIGINT", None)
    assert keys_of([f'{{"{column.name}":{number}}}' for number in range(3)], column) == [0, 1, 2]


def test_a_text_that_is_no_json_has_no_key() -> None:
    assert keys_of(['{"id":1}', '{"id":', "", '{"id":2}{"id":3}', "[1]"], INTEGER) == ["1", None, None, None, None]


def test_a_row_longer_than_a_block_is_read() -> None:
    long = json.dumps({"v": "x" * (9 << 20), "id": 7})
    assert keys_of([*['{"id":1}'] * 999, long], INTEGER)[-2:] == [1, 7]


@given(st.lists(st.tuples(st.integers(0, 99).map(str), st.text("ab\\N", max_size=3)), min_size=1, max_size=9))
def test_keys_of_csv(rows: list[tuple[str, str]]) -> None:
    first, second = (KeyColumn("a", KeyType.INTEGER, None, "a", 0), KeyColumn("b", KeyType.TEXT, None, "b", 2))
    lines = ["\x01".join((number, "other", text, "0")) for number, text in rows]
    assert keys_of(lines, second, separator=b"\x02") == [None if text == r"\N" else text for _, text in rows]
    assert keys_of(lines, first, separator=b"\x02") == [number for number, _ in rows]


# --- which rows are sent ---


@given(st.lists(st.none() | st.integers(0, 5)), st.booleans())
def test_the_last_row_of_a_key_is_kept_and_each_row_without_one(keys: list[int | None], texts: bool) -> None:
    last = {key: row for row, key in enumerate(keys)}
    expected = [key is None or last[key] == row for row, key in enumerate(keys)]
    values = pa.array(keys, pa.int64())
    kept = last_of_each(values.cast(pa.large_string()) if texts else values)
    assert (expected if kept is None else kept.tolist()) == expected
    assert kept is None or not all(expected)


Change = tuple[str, int]  # source partition, key


@st.composite
def loads(draw: st.DrawFn) -> list[list[Chunk]]:
    """Loads of one table, made of chunks whose rows are numbered."""
    number = itertools.count()
    made = []
    for _ in range(draw(st.integers(1, 5))):
        chunks = []
        for partition in draw(st.lists(st.sampled_from("pq"), min_size=1, max_size=3)):
            chunk = Chunk(partition, "t")
            for _ in range(draw(st.integers(1, 3))):
                keys = draw(st.lists(st.none() | st.integers(0, 30), min_size=1, max_size=4))
                add_piece(chunk, [(key, next(number)) for key in keys])
            chunks.append(chunk)
        made.append(chunks)
    return made


def add_piece(chunk: Chunk, rows: Sequence[tuple[int | None, int]]) -> None:
    lines = [
        b"," + json.dumps({"v": number} if key is None else {"id": key, "v": number}).encode() for key, number in rows
    ]
    offsets = np.array([0, *itertools.accumulate(map(len, lines))]) + 5  # the piece is a slice of something larger
    index = RowIndex(np.arange(len(lines)), offsets)
    chunk.append(memoryview(b"".join(lines)), len(lines), index)


def rows_in(pieces: Sequence[memoryview]) -> list[dict[str, int]]:
    content = b"".join(pieces)
    found: list[dict[str, int]] = json.loads(b"[" + content[1:] + b"]") if content else []
    return found


def send(unique: UniqueRows, label: str, chunks: list[list[Chunk]], *, newest_first: bool) -> Iterator[dict[str, int]]:
    for load in reversed(chunks) if newest_first else chunks:
        selection = unique.select(LoadAction(label, "t", tuple(load), newest_first))
        sent, came = rows_in(selection.pieces), [row for chunk in load for row in rows_in(chunk.pieces)]
        assert len(sent) + sum(each.rows for each in selection.replaced.values()) == len(came)
        sizes = sum(chunk.bytes for chunk in load) - sum(piece.nbytes for piece in selection.pieces)
        assert sum(each.bytes for each in selection.replaced.values()) == sizes
        yield from sent


@given(loads())
def test_newest_first_leaves_the_last_row_of_each_key_however_many_loads(chunks: list[list[Chunk]]) -> None:
    everything = [row for load in chunks for chunk in load for row in rows_in(chunk.pieces)]
    last = {row["id"]: row["v"] for row in everything if "id" in row}
    sent = list(send(UniqueRows({"t": [INTEGER]}), "label", chunks, newest_first=True))
    assert sorted((row["id"], row["v"]) for row in sent if "id" in row) == sorted(last.items())
    assert sorted(row["v"] for row in sent if "id" not in row) == [row["v"] for row in everything if "id" not in row]


@given(loads())
def test_in_order_a_key_that_comes_again_is_refused_and_else_nothing_is_missing(chunks: list[list[Chunk]]) -> None:
    keys = [{row["id"] for chunk in load for row in rows_in(chunk.pieces) if "id" in row} for load in chunks]
    again = any(one & other for one, other in itertools.combinations(keys, 2))
    unique = UniqueRows({"t": [INTEGER]})
    if again:
        with pytest.raises(KeyRepeated):
            list(send(unique, "label", chunks, newest_first=False))
    else:
        sent = list(send(unique, "label", chunks, newest_first=False))
        assert {row["id"] for row in sent if "id" in row} == set().union(*keys)
    assert unique.repeated is again
    list(send(unique, "another label", chunks[:1], newest_first=False))  # knows nothing of the first


def test_loads_whose_keys_are_spelled_differently_know_each_other() -> None:
    unique = UniqueRows({"t": [INTEGER]})
    one, other = Chunk("p", "t"), Chunk("p", "t")
    add_piece(one, [(1, 0)])
    other.append(memoryview(b',{"id":"01"}'), 1, RowIndex(np.arange(1), np.array([0, 12])))
    unique.select(LoadAction("l", "t", (one,)))
    with pytest.raises(KeyRepeated):
        unique.select(LoadAction("l", "t", (other,)))


def test_rows_of_other_tables_are_sent_as_they_are() -> None:
    chunk = Chunk("p", "other", [memoryview(b',{"id":1},{"id":1}')], 2, 18, [None])
    assert UniqueRows({"t": [INTEGER]}).select(LoadAction("l", "other", (chunk,))).pieces == chunk.pieces


# --- the file for rows that do not fit ---


def test_a_spilled_chunk_has_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/elsewhere")
    spill, rng = SpillFile(), random.Random(3)
    before, chunks = [], []
    for _ in range(5):
        chunk = Chunk("p", "t")
        for _ in range(3):
            add_piece(chunk, [(rng.randrange(9), rng.randrange(10**9)) for _ in range(rng.randrange(1, 200))])
        before.append([bytes(piece) for piece in chunk.pieces])
        assert spill.take([chunk])
        chunks.append(chunk)
    assert [[bytes(piece) for piece in chunk.pieces] for chunk in chunks] == before
    assert all(
        index is not None and index.rows(piece)
        for chunk in chunks
        for piece, index in zip(chunk.pieces, chunk.row_indexes, strict=True)
    )
    assert list(tmp_path.iterdir()) == []  # the file has no name, so nothing is left behind


def test_a_disk_that_takes_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    chunk = Chunk("p", "t")
    add_piece(chunk, [(1, 1)])
    before = list(chunk.pieces)
    monkeypatch.setattr("tempfile.TemporaryFile", full)
    assert SpillFile().take([chunk]) is False
    assert chunk.pieces == before
