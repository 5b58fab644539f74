"""The names in JSON rows: every row's are compared with its table's columns, with the compiled loop and without."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from starrocks_txn_sink.compiled.findings import RowFindings, Shapes
from starrocks_txn_sink.coordinator.model import words_of_missing
from starrocks_txn_sink.errors import InputError, UnknownColumn
from starrocks_txn_sink.rows import member_names
from starrocks_txn_sink.rows.columns import UNCHANGED
from starrocks_txn_sink.rows.member_names import LackingColumns, MemberNames

COLUMNS = {"t": {"id", "name"}, "b": {"größe"}}


pytestmark = pytest.mark.usefixtures("loop")


def batch(*rows: tuple[str, str], wide: bool = False) -> pa.RecordBatch:
    """Rows of (table, text), in JSON with the separator in front; the first one is a slice's first."""
    texts = [row if row.startswith("\x02") else f",{row}" for _, row in rows]
    kind = pa.large_string() if wide else pa.string()
    whole = pa.RecordBatch.from_pydict(
        {
            "source_partition": pa.array(["x", *["p"] * len(rows)]),
            "position": pa.array(range(len(rows) + 1), pa.int64()),
            "table": pa.array(["other", *(table for table, _ in rows)]),
            "payload": pa.array(['{"other":1}', *texts], kind),
        }
    )
    return whole.slice(1)


def check(refuse: bool = True, compared: Mapping[str, set[str]] | None = None, but: Iterable[str] = ()) -> MemberNames:
    return MemberNames(
        RowFindings(Shapes()).new_rows, lambda table, _: COLUMNS.get(table), lambda table: table not in but, refuse,
        {} if compared is None else compared,
    )  # fmt: skip


def words(lacking: LackingColumns) -> dict[str, dict[str, list[str]]]:
    return words_of_missing(lacking.missing())


@pytest.mark.parametrize("lacking", [None, LackingColumns()])
def test_a_name_that_differs_in_case_alone_is_said_so(lacking: LackingColumns | None) -> None:
    """No ALTER adds such a column, so schema_changes='apply' does not wait for it either."""
    names = check()
    names.lacking = lacking
    with pytest.raises(UnknownColumn) as refused:
        names(batch(("t", '{"ID":1,"Name":2,"email":3}')))
    message = str(refused.value)
    assert "in another case at source partition p, position 1: ID (the column is id), Name (the" in message
    assert 'rename = { "ID" = "id", "Name" = "name" }' in message
    assert "ALTER" not in message


@pytest.mark.parametrize("wide", [False, True])
def test_a_name_without_a_column_is_refused_in_any_row_with_its_place_and_remedy(wide: bool) -> None:
    """Not only in the first rows, and also behind a delete, an escape, or a nested value with such a name."""
    rows = [("t", '{"id":%d,"name":{"email":1}}' % number) for number in range(5_000)]  # noqa: UP031
    rows[1] = ("t", '{"__op":1,"id":1,"email":2}')
    names = check()
    names(batch(*rows, wide=wide))
    rows[4_000] = ("t", r'{"id":1,"name":"}","em\u0061il":"secret"}')
    with pytest.raises(UnknownColumn) as refused:
        names(batch(*rows, wide=wide))
    message = str(refused.value)
    assert "table t does not have at source partition p, position 4001: email." in message
    assert "ALTER TABLE `t` ADD COLUMN `email` VARCHAR(1048576) NULL, and" in message
    assert "schema_changes='apply'" in message
    assert "secret" not in message


def test_the_columns_are_asked_again_before_a_name_is_refused() -> None:
    """A column may have been added since."""
    questions: list[bool] = []

    def columns_of(_: str, again: bool) -> set[str]:
        questions.append(again)
        return {"id", "email"} if again else {"id"}

    names = MemberNames(RowFindings(Shapes()).new_rows, columns_of, lambda _: True, True)
    names(batch(("t", '{"id":1}'), ("t", '{"id":1,"email":2}'), ("t", '{"id":2,"email":2}')))
    assert questions == [False, False, True]


def test_without_refusal_the_driver_gets_the_names_that_it_does_not_know() -> None:
    names = check(refuse=False, compared={"t": {"id"}, "b": {"größe"}}, but="c")
    names(batch(("t", '{"id":1,"late":{"x":1}}'), ("b", ' { "gr\\u00f6ße" : null } '), ("c", '{"secret":1}')))
    names(batch(("t", '{"other":"},{"}'), ("d", '{"__op":1,"id":1}')))
    assert names.news() == {"t": ("id", "late", "other"), "b": ()}


def test_tables_of_one_shape_are_looked_at_each() -> None:
    names = check()
    with pytest.raises(UnknownColumn, match="table b does not have"):
        names(batch(("t", '{"id":1}'), ("t", '{"id":2}'), ("b", '{"id":1}')))


@pytest.mark.parametrize("text", ['{"a":1,"b":', "[1]", "[" * 100_000, "{}", "", '{"id":NaN}'])
def test_text_that_names_nothing_is_left_to_the_server(text: str) -> None:
    names = check()
    names(batch(("t", text), ("t", '{"id":1}')))
    assert names.news().get("t", ()) == ("id",)


def test_a_table_without_known_columns_is_not_checked() -> None:
    check()(batch(("unseen", '{"any":1}')))


def test_a_lone_surrogate_can_be_sent() -> None:
    names = check(refuse=False)
    names(batch(("t", r'{"\ud800":1}')))
    assert names.news() == {"t": ("?",)}


def test_more_shapes_than_are_remembered_are_all_read() -> None:
    names = check(refuse=False)
    names.new_rows = RowFindings(Shapes(8)).new_rows
    names(batch(*(("t", json.dumps({f"n{number}": 1})) for number in range(300))))
    assert set(names.news()["t"]) == {f"n{number}" for number in range(300)}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.dictionaries(st.text(st.characters(codec="utf-8")), st.text() | st.integers()), max_size=9))
def test_all_names_are_found(rows: list[dict[str, str | int]]) -> None:
    expected = {name for row in rows for name in row if "__op" not in row}
    names = check(refuse=False)
    names(batch(*(("t", json.dumps(row)) for row in rows)))
    names(batch(*(("t", json.dumps(row, ensure_ascii=False, separators=(",", ":"))) for row in rows)))
    assert set(names.news().get("t", ())) == expected


NAMES = [
    "id",
    "ID",
    "i",
    "name",
    "names",
    "größe",
    'a"',
    "a\\",
    "a name that is longer than one block of 16 bytes",
    "x,y",
]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.floats(allow_nan=False)
    | st.integers()
    | st.text(max_size=40)
    | st.text('x"\\\\:,', max_size=150)
    | st.sampled_from(NAMES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=6,
)

LAST = ("z", '{"id":"so that the rows before it are read in blocks%s"}' % ("." * 100))

SHAPES = st.lists(st.lists(st.sampled_from(NAMES), max_size=3, unique=True), min_size=1, max_size=3)
ROWS = SHAPES.flatmap(
    lambda shapes: st.lists(
        st.tuples(
            st.sampled_from(["t", "b"]),
            st.sampled_from(shapes).flatmap(lambda names: st.fixed_dictionaries(dict.fromkeys(names, VALUES))),
            st.sampled_from([(",", ":"), (" ,", " :\n")]),
        ),
        min_size=1,
        max_size=12,
    )
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ROWS)
def test_a_row_that_resembles_the_one_before_hides_no_name(rows: list[tuple[str, dict[str, Any], Any]]) -> None:
    """The loop passes rows of the same text between their values quickly."""
    expected: dict[str, set[str]] = {}
    for table, members, _ in rows:
        expected.setdefault(table, set()).update(members)
    names = check(refuse=False)
    texts = [(table, json.dumps(row, ensure_ascii=False, separators=gaps)) for table, row, gaps in rows]
    names(batch(*texts, LAST))
    assert names.by_table == expected | {"z": {"id"}}


@pytest.mark.parametrize(
    ("former", "text"),
    [
        ('{"a":"x","id":1}', '{"a":"\\",\\"id\\":1,","b":1}'),
        ('{"a":{"id":1},"id":1}', '{"a":{"id":1,"b":2},"c":1}'),
        ('{"a":1,"id":1}', '{"a":[1,"id",1],"b":1}'),
        ('{"a name of many letters: first":1}', '{"a name of many letters: other":1}'),
        ('{"a":1}', '{"a":1 ,"b":2}'),
        ('{"a":"1","id":"x"}', '{"a":"1","b":"x"}'),
        ('{"a":"1","id":"x"}', '{"a":"%s\\\\","b":"x"}' % ("1" * 56)),
        ('{"a":{"id":1}}', '{"a":{"id":1},"b":1}'),
        ('{"a":["1"],"id":1}', '{"a":["1","id"],"b":1}'),
    ],
)
def test_rows_that_begin_alike_are_told_apart(former: str, text: str) -> None:
    names = check(refuse=False)
    names(batch(("t", former), ("t", text), LAST))
    assert names.by_table["t"] == {*json.loads(former), *json.loads(text)}


@pytest.mark.parametrize("malformed", ['{"a":1,"id":}', '{"a":1,"id":1', '{"a":1}{"id":1}', '[{"a":1,"id":1}]'])
def test_what_is_no_row_stands_for_none(malformed: str) -> None:
    names = check(refuse=False)
    names(batch(("t", malformed), ("t", '{"a":1,"id":2}'), LAST))
    assert names.by_table["t"] == {"a", "id"}


def test_the_last_name_of_many_is_looked_at() -> None:
    """Also of more names than are compared as text."""
    for members in (40, 200):
        rows = [{f"n{number}": number for number in range(members)} for _ in range(3)]
        rows[1]["late"] = 1
        names = check(refuse=False)
        names(batch(*(("t", json.dumps(row)) for row in rows), LAST))
        assert names.by_table["t"] == rows[1].keys()


@pytest.mark.parametrize("gap", range(130))
def test_a_name_behind_a_long_value_is_found_wherever_a_block_ends(gap: int) -> None:
    text = "x" * gap
    rows = [{"a": text + '\\"', "id": text}, {"a": text + '",\\', "b": text}, {"a": text, "id": text}]
    names = check(refuse=False)
    names(batch(*(("t", json.dumps(row, separators=(",", ":"))) for row in rows), LAST))
    assert names.by_table["t"] == {"a", "id", "b"}


def test_each_of_many_tables_is_looked_at() -> None:
    names = check(refuse=False)
    names(batch(*((f"t{number}", '{"id":1}') for number in range(500))))
    assert len(names.by_table) == 500


# --- with columns that the driver may add ---


def applying() -> tuple[MemberNames, LackingColumns]:
    names = check()
    names.lacking = LackingColumns()
    return names, names.lacking


def test_a_lacking_column_has_the_kinds_of_all_its_values_from_the_first_row_on() -> None:
    names, lacking = applying()
    names(batch(("t", '{"id":1}'), ("t", '{"id":1,"age":1}'), ("b", '{"größe":1}')))
    assert words(lacking) == {"t": {"age": ["INTEGER"]}}
    names(batch(("t", '{"id":2,"age":null}'), ("t", '{"id":1,"age":1.5}'), ("t", '{"age":"x", "id":1}')))
    assert words(lacking) == {"t": {"age": ["FRACTION", "INTEGER", "TEXT"]}}


def test_a_lacking_column_that_is_null_waits_for_its_first_value() -> None:
    """In rows of the same shape too, and a delete is no such value."""
    names, lacking = applying()
    names(batch(("t", '{"id":1,"age":null}'), ("t", '{"id":1,"age":null}'), ("t", '{"__op":1,"id":1,"age":7}')))
    assert lacking.missing() == {}
    names(batch(("t", '{"id":1,"age":null}'), ("t", '{"id":1,"age":true}')))
    assert words(lacking) == {"t": {"age": ["TRUTH"]}}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('{"id":1,"age" :\t7}', "INTEGER"),
        (r'{"id":1,"\u0061ge":"x"}', "TEXT"),
        ('{"id":1,"age":null,"age":false}', "TRUTH"),
        ('{"id":{"age":1},"age":[null]}', "DOCUMENT"),
        ('{"id":1,"age":-0.5}', "FRACTION"),
    ],
)
def test_a_first_value_is_found_however_it_is_written(text: str, kind: str) -> None:
    names, lacking = applying()
    names(batch(("t", '{"id":1,"age":null,"a.e":null}')))
    names(batch(("t", '{"id":1,"age" : null}'), ("t", text)))
    assert words(lacking) == {"t": {"age": [kind]}}


def test_rows_in_which_a_lacking_column_is_null_are_not_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A column may be NULL for weeks, and Python a row is slow."""
    names, lacking = applying()
    rows = [("t", '{"id":1,"age":null}')] * 3
    names(batch(*rows))
    monkeypatch.setattr(member_names, "members_of", None)
    names(batch(*rows))
    assert (lacking.watched, lacking.missing()) == ({"t": {"age"}}, {})


def test_a_table_that_is_not_there_lacks_all_columns_also_those_of_a_delete() -> None:
    names, lacking = applying()
    names(batch(("new", '{"__op":1,"id":1}'), ("new", '{"note":"x","id":9007199254740993,"age":null}')))
    assert words(lacking) == {"new": {"id": ["INTEGER", "LONG"], "note": ["TEXT"]}}


@pytest.mark.parametrize("text", [r'{"id":1,"\ud800":2}', '{"id":1,"deep":' + "[" * 1020 + "]" * 1020 + "}"])
def test_a_lacking_column_whose_values_cannot_be_read_ends_the_lane(text: str) -> None:
    names, _ = applying()
    with pytest.raises(UnknownColumn, match="table t does not have at source partition p, position 1"):
        names(batch(("t", text)))


def test_a_table_that_is_not_there_is_created_before_values_are_looked_up() -> None:
    """A table that is there, and whose key the sink does not know, refuses the row."""
    names, lacking = applying()
    names(batch(("new", f'{{"id":1,"{UNCHANGED}":["note"]}}'), ("new", f'{{"id":1,"{UNCHANGED}":[]}}')))
    assert words(lacking) == {"new": {"id": ["INTEGER"]}}
    for unchanged, message in {'["name"]': r"did not change \(name\)", "[]": "t is deleted, and stays at"}.items():
        with pytest.raises(InputError, match=message):
            applying()[0](batch(("t", f'{{"id":1,"{UNCHANGED}":{unchanged}}}')))


def test_the_source_s_schema_says_types_and_the_error_shows_the_statement() -> None:
    types = {("t", "price"): ["DECIMAL(10,2)", "DECIMAL(12,2)"]}
    names, lacking = applying()
    names.types_of = lacking.types_of = lambda table, name: types.get((table, name), [])
    names(batch(("t", '{"id":1,"price":"1.50","age":1}')))
    assert words(lacking) == {"t": {"price": ["TEXT", "=DECIMAL(10,2)", "=DECIMAL(12,2)"], "age": ["INTEGER"]}}
    names.lacking = None
    with pytest.raises(
        UnknownColumn, match=r"`t` ADD COLUMN `age` BIGINT NULL, ADD COLUMN `price` DECIMAL\(10,2\) NULL"
    ):
        names(batch(("t", '{"age":1,"price":"1.50"}')))
    types["t", "note"] = ["STRING"]
    with pytest.raises(UnknownColumn, match=r"`t` ADD COLUMN `note` VARCHAR\(1048576\) NULL, and"):
        names(batch(("t", '{"note":"n"}')))
