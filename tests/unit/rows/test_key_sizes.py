"""The size of a primary key: values behind each other, texts with an end unless they are the last value."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink.compiled import library
from starrocks_txn_sink.compiled.keys import LongKeys
from starrocks_txn_sink.rows.key_sizes import LIMIT, KeySize
from starrocks_txn_sink.rows.target import TargetColumn, parse_type
from tests.support.depth import examples


def key_of(**types: str) -> KeySize | None:
    columns = [TargetColumn(name, parse_type(kind), key=name != "v") for name, kind in types.items()]
    return KeySize.of(columns)


def size(row: object, **types: str) -> int:
    key = key_of(**types)
    assert key is not None
    return key.of_row(row if isinstance(row, bytes) else json.dumps(row).encode())


def test_a_single_text_counts_its_bytes() -> None:
    assert size({"k": "a\0é"}, k="varchar(255)") == 4


def test_texts_have_an_end_and_longer_nulls_unless_they_are_last() -> None:
    types = {"a": "varchar(9)", "i": "int(11)", "b": "varchar(9)"}
    assert size({"a": "x\0", "i": 1, "b": "y\0"}, **types) == (2 + 1 + 2) + 4 + 2
    assert size({"a": "x", "i": 1}, a="varchar(9)", i="bigint(20)") == 1 + 2 + 8


@pytest.mark.parametrize(
    ("kind", "bytes_"),
    [
        *(("tinyint(1)", 1), ("tinyint(4)", 1), ("smallint(6)", 2), ("int(11)", 4), ("bigint(20)", 8)),
        *(("bigint(20) unsigned", 16), ("date", 4), ("datetime", 8)),
    ],
)
def test_other_values_have_a_fixed_size(kind: str, bytes_: int) -> None:
    assert size({}, n=kind, k="varchar(200)") == bytes_


@pytest.mark.parametrize(
    ("row", "bytes_"),
    [
        (b'{"k": 12.50}', 5),
        (b'{"k": true}', 1),
        (b'{"k": null}', 0),
        (b'{"k": "ab", "k": "c"}', 2),  # of equal members the first counts
        (b'{"k": "\\ud83d\\ude00"}', 4),
        (b"[]", 0),
        (b'{"k": ', 0),
    ],
)
def test_values_of_any_kind(row: bytes, bytes_: int) -> None:
    assert size(row, k="varchar(255)") == bytes_


def test_what_no_key_exceeds() -> None:
    assert key_of(v="varchar(9)") is None
    assert key_of(k="decimal(9, 2)") is None
    key = key_of(k="varchar(9)", n="int(11)", v="varchar(99)")
    assert key is not None
    assert (key.columns, key.most) == (("k", "n"), 2 * 9 + 2 + 4)


ROWS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "v": st.text(max_size=150),
            "k": st.one_of(
                st.text(max_size=140), st.text("\0é\n", max_size=70), st.none(), st.integers(-(10**9), 10**9)
            ),
            "l": st.text("ab\0", max_size=130),
        },
    ),
    max_size=6,
)


@pytest.mark.parametrize("pure", [False, True])
@given(rows=ROWS, escaped=st.booleans())
@examples(200)
def test_no_row_with_too_long_a_key_is_left_out(pure: bool, rows: list[dict[str, object]], escaped: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if pure:
            patch.setenv(library.PURE, "1")
        keys = key_of(k="varchar(255)"), key_of(k="varchar(99)", l="varchar(99)"), None
        texts = [b"," + json.dumps(row, ensure_ascii=escaped).encode() for row in rows]
        tables = np.arange(len(rows), dtype=np.int32) % 3
        found = LongKeys(keys, LIMIT).candidates(pa.array(texts, pa.binary()), tables)
        measured = zip((keys[table] for table in tables), texts, strict=True)
        sizes = [key.of_row(text[1:]) if key is not None else 0 for key, text in measured]
        assert {number for number, bytes_ in enumerate(sizes) if bytes_ > LIMIT} <= set(found)
        if library.is_available() and not escaped:
            short = {n for n, row in enumerate(rows) if sum(len(str(row.get(name, ""))) for name in "kl") < 20}
            assert not short & set(found)
