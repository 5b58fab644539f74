"""The names in JSON rows: every row's are compared with its table's columns, with the compiled loop and without."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from starrocks_txn_sink import compiled
from starrocks_txn_sink.errors import UnknownColumn
from starrocks_txn_sink.rows.member_names import MemberNames

COLUMNS = {"t": {"id", "name"}, "b": {"größe"}}


@pytest.fixture(autouse=True, params=["compiled", "pure"])
def loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "pure":
        monkeypatch.setenv(compiled.PURE, "1")
    elif not compiled.is_available():
        pytest.skip("this installation has no compiled loop")
    return str(request.param)


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
        compiled.Shapes().new_rows, lambda table, _: COLUMNS.get(table), lambda table: table not in but, refuse,
        {} if compared is None else compared,
    )  # fmt: skip


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
    said = str(refused.value)
    assert "table t does not have at source partition p, position 4001: email." in said
    assert "ALTER TABLE `t` ADD COLUMN `email` <type>" in said
    assert "schema_changes='ignore'" in said
    assert "secret" not in said


def test_the_columns_are_asked_again_before_a_name_is_refused() -> None:
    """A column may have been added since."""
    asked: list[bool] = []

    def columns_of(_: str, again: bool) -> set[str]:
        asked.append(again)
        return {"id", "email"} if again else {"id"}

    names = MemberNames(compiled.Shapes().new_rows, columns_of, lambda _: True, True)
    names(batch(("t", '{"id":1}'), ("t", '{"id":1,"email":2}'), ("t", '{"id":2,"email":2}')))
    assert asked == [False, False, True]


def test_without_refusal_the_driver_gets_the_names_that_it_does_not_know() -> None:
    names = check(refuse=False, compared={"t": {"id"}, "b": {"größe"}}, but="c")
    names(batch(("t", '{"id":1,"late":{"x":1}}'), ("b", ' { "gr\\u00f6ße" : null } '), ("c", '{"secret":1}')))
    names(batch(("t", '{"other":"},{"}'), ("d", '{"__op":1,"id":1}')))
    assert names.news() == {"t": ("id", "late", "other"), "b": ()}


def test_tables_of_one_shape_are_looked_at_each() -> None:
    names = check()
    with pytest.raises(UnknownColumn, match="table b does not have"):
        names(batch(("t", '{"id":1}'), ("t", '{"id":2}'), ("b", '{"id":1}')))


@pytest.mark.parametrize("text", ['{"a":1,"b":', "[1]", "\x02unknown\x01csv", "[" * 100_000, "{}", "", '{"id":NaN}'])
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


def test_more_shapes_than_are_remembered_are_all_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_SHAPES", 8)
    names = check(refuse=False)
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
