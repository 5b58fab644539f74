"""Rules for the columns of rows: the compiled loop and Python write the same, and nothing of what is masked."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink import TableRules
from starrocks_txn_sink.compiled import library as loops
from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.options.table_rules import RuleSet, rules_of
from starrocks_txn_sink.rows.columns import UNCHANGED
from starrocks_txn_sink.sources.formats.column_rules import apply_rules, ruled_columns, ruled_row
from starrocks_txn_sink.sources.formats.connect_types import SourceColumn
from tests.support.depth import examples
from tools.compile import compile_loops

SALT = "päpper"
RULES = TableRules(
    tables="t",
    drop=["secret", "é"],
    rename={"a": "b", "mail": 'e"mail'},
    mask={"mail": "sha256", "name": "truncate:3", "pin": 'constant:"?"', "tax": "null"},
    salt=SALT,
)


def events(*rows: str | None, table: str | None = "t") -> pa.Table:
    count = len(rows)
    return pa.table(
        {
            "source_partition": ["p"] * count,
            "position": pa.array(range(count), pa.int64()),
            "table": pa.array([table] * count, pa.string()),
            "row": pa.array(rows, pa.string()),
        }
    )


def applied(*rows: str | None, rules: TableRules = RULES, table: str | None = "t") -> list[str | None]:
    result: list[str | None] = apply_rules(RuleSet([rules]), events(*rows, table=table))["row"].to_pylist()
    return result


def sha(text: str) -> str:
    return hashlib.sha256((SALT + text).encode()).hexdigest()


@pytest.mark.usefixtures("loop")
@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("{}", "{}"),
        ('{"x":1,"y":[2,{"secret":3}]}', '{"x":1,"y":[2,{"secret":3}]}'),
        ('{"secret":"s3cr3t"}', "{}"),
        ('{"secret":1,"x":2}', '{"x":2}'),
        ('{"x":2,"secret":{"a":[1]}}', '{"x":2}'),
        ('{"x":1,"secret":1,"é":3,"y":2,"secret":4}', '{"x":1,"y":2}'),
        ('{"a":1}', '{"b":1}'),
        ('{"mail":"x@y"}', f'{{"e\\"mail":"{sha("x@y")}"}}'),
        ('{"mail":null,"name":null,"pin":null,"tax":null}', '{"e\\"mail":null,"name":null,"pin":null,"tax":null}'),
        ('{"mail":""}', f'{{"e\\"mail":"{sha("")}"}}'),
        ('{"mail":1.50}', f'{{"e\\"mail":"{sha("1.50")}"}}'),
        ('{"mail":true}', f'{{"e\\"mail":"{sha("true")}"}}'),
        ('{"mail":"\\u00e9\\n\\ud83d\\ude00"}', f'{{"e\\"mail":"{sha("é" + chr(10) + "😀")}"}}'),
        ('{"m\\u0061il":"x@y"}', f'{{"e\\"mail":"{sha("x@y")}"}}'),
        ('{"name":"ab"}', '{"name":"ab"}'),
        ('{"name":"éü😀x"}', '{"name":"éü😀"}'),
        ('{"name":12345}', '{"name":"123"}'),
        ('{"pin":"0815","tax":[1]}', '{"pin":"\\"?\\"","tax":null}'),
    ],
)
def test_a_row_follows_its_rules(row: str, expected: str) -> None:
    assert applied(row) == [expected]
    assert applied(*[row] * 40, "{}")[:40] == [expected] * 40


@pytest.mark.usefixtures("loop")
def test_escapes_count_as_characters() -> None:
    for row in ('{"name":"\\u00e9\\n\\ud83d\\ude00x"}', '{"name":"\\"\\\\\\/x"}'):
        (text,) = applied(row)
        assert json.loads(text or "") == {"name": json.loads(row)["name"][:3]}


@pytest.mark.usefixtures("loop")
def test_columns_that_kept_their_values_follow_the_rules_for_names() -> None:
    plain = f'{{"x":1,"{UNCHANGED}":["name","y"]}}'
    assert applied(plain) == [plain]
    (text,) = applied(f'{{"x":1,"{UNCHANGED}":["secret","a","mail"]}}')
    assert json.loads(text or "") == {"x": 1, UNCHANGED: ["b", 'e"mail']}
    assert (text or "").endswith("]}")
    assert applied(f'{{"x":1,"{UNCHANGED}":["secret"]}}') == ['{"x":1}']


@pytest.mark.usefixtures("loop")
@pytest.mark.parametrize("row", ["[1]", "x", "", '{"mail":"x@y"', '{"mail":"x@y"} {}', '{"mail":x@y}'])
def test_a_row_that_is_no_object_stops_with_its_place_and_without_a_value(row: str) -> None:
    with pytest.raises(InputError) as stopped:
        applied("{}", row)
    assert "A row of table t is not one JSON object" in stopped.value.message
    assert "source_partition p, position 1" in stopped.value.message
    assert "x@y" not in str(stopped.value)


@pytest.mark.usefixtures("loop")
def test_a_column_with_the_new_name_of_another_one_stops() -> None:
    with pytest.raises(
        InputError, match="A row of table t has the column b, and a rule gives another column this name"
    ):
        applied('{"a":1,"b":2}')
    swapping = TableRules(tables="t", rename={"a": "b", "b": "a"})
    assert applied('{"a":1,"b":2}', rules=swapping) == ['{"b":1,"a":2}']
    with pytest.raises(InputError, match="has the column _source_table"):
        applied('{"_source_table":1}', rules=TableRules(tables="t", metadata=["_source_table"]))


def test_rows_of_other_tables_stay_as_they_are() -> None:
    assert applied('{"secret": 1}', None, table="u") == ['{"secret": 1}', None]
    assert applied(None) == [None]


def test_rows_without_a_table_have_no_content_where_anything_is_hidden() -> None:
    """No rule is for them, and they may wait in the state, or become dead letters."""
    assert applied('{"secret": 1}', None, table=None) == ["{}", None]
    assert applied('{"secret": 1}', table=None, rules=TableRules(tables="t", rename={"a": "b"})) == ['{"secret": 1}']


def test_the_hash_is_that_of_all_lengths() -> None:
    texts = ["x" * size for size in range(300)]
    rows = applied(*(json.dumps({"mail": text}) for text in texts))
    assert [json.loads(row or "")['e"mail'] for row in rows] == [sha(text) for text in texts]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=90),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(["secret", "é", "a", "mail", "name", "pin", "tax", "x", "y"]) | st.text(max_size=4)
ROWS = st.lists(st.dictionaries(NAMES, VALUES, max_size=8), min_size=1, max_size=8)


@examples(200)
@given(ROWS, st.booleans(), st.booleans(), st.randoms(use_true_random=False))
def test_the_loop_and_python_agree(
    rows: list[dict[str, Any]], spaces: bool, ascii_only: bool, rng: random.Random
) -> None:
    of_table = rules_of([RULES], "t")
    assert of_table is not None
    texts = [
        json.dumps(
            {name: value for name, value in row.items() if name not in of_table.taken},
            ensure_ascii=ascii_only,
            indent=rng.choice([None, 1]) if spaces else None,
        )
        for row in rows
    ]
    rows_found = apply_rules(RuleSet([RULES]), events(*texts))["row"].to_pylist()
    assert rows_found == [ruled_row(text, of_table) for text in texts]
    for text, row in zip(rows_found, texts, strict=True):
        check_values(json.loads(text), json.loads(row))


def check_values(row_found: dict[str, Any], row: dict[str, Any]) -> None:
    """What the rules make of a row whose masked values are texts; others are hashed and cut in their own spelling."""
    assert row_found.keys() == {{"a": "b", "mail": 'e"mail'}.get(name, name) for name in row.keys() - {"secret", "é"}}
    for name, value in row.items():
        if name in ("a", "x", "y"):
            assert row_found["b" if name == "a" else name] == value
        elif name == "tax":
            assert row_found["tax"] is None
        elif name == "pin":
            assert row_found["pin"] == (None if value is None else '"?"')
        elif name == "mail" and isinstance(value, str):
            assert row_found['e"mail'] == sha(value)
        elif name == "name" and isinstance(value, str):
            assert row_found["name"] == value[:3]


def test_the_types_of_columns_follow_the_rules() -> None:
    columns = [SourceColumn(name, "STRING") for name in ("secret", "a", "mail", "name", "tax", "x")]
    rules = TableRules(
        tables="t",
        drop=["secret"],
        rename={"a": "b"},
        mask={"mail": "sha256", "name": "truncate:3", "tax": "null"},
        salt="s",
        metadata=["_op", "_position"],
    )
    columns_found = ruled_columns(RuleSet([rules]), "t", columns)
    assert [(column.name, column.type) for column in columns_found] == [
        ("b", "STRING"),
        ("mail", "VARCHAR(64)"),
        ("name", "VARCHAR(12)"),
        ("tax", "STRING"),
        ("x", "STRING"),
        ("_op", "VARCHAR(16)"),
        ("_position", "BIGINT"),
    ]
    assert ruled_columns(RuleSet([rules]), "u", columns) == columns


def test_the_hash_is_the_same_without_the_processors_instructions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "plain.so"
    flags = ["-std=c11", "-O1", "-shared", "-fPIC", "-DPLAIN_SHA"]
    if fault := compile_loops(Path(loops.__file__).parent, library, flags):
        pytest.skip(fault)
    monkeypatch.setattr(loops, "LIBRARY", library)
    loops.library.cache_clear()
    try:
        assert loops.is_available()
        test_the_hash_is_that_of_all_lengths()
    finally:
        loops.library.cache_clear()
