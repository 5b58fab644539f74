"""The names in a table's first rows: read once, for each spelling of a row, and at a bounded cost."""

from __future__ import annotations

import json
from collections.abc import Iterable

from hypothesis import given, strategies as st

from starrocks_txn_sink.coordinator.model import PositionSpan, RegionRows, Segment
from starrocks_txn_sink.rows.arrival import MemberNames


def piece(table: str, *rows: str) -> RegionRows:
    return RegionRows("p", table, memoryview("".join(f",{row}" for row in rows).encode()), len(rows))


def names_in(*segments: Segment, but: Iterable[str] = ()) -> dict[str, tuple[str, ...]]:
    members = MemberNames(lambda table: table not in but)
    assert list(members.read(segments)) == list(segments)
    return members.by_table


def test_rows_of_a_table_add_up_and_nested_members_do_not_count() -> None:
    found = names_in(
        piece("a", '{"id":1,"x":{"y":[{"z":1}]}}', ' { "n\\u0061me" : null } '),
        PositionSpan("p", 1, 1, 1),
        piece("b", '{"größe":"},{"}'),
        piece("a", '{"id":2,"late":1}', "{}"),
        piece("c", '{"secret":1}'),
        but="c",
    )
    assert found == {"a": ("id", "late", "name", "x"), "b": ("größe",)}


def test_a_delete_names_no_columns() -> None:
    assert names_in(piece("a", '{"__op":1,"id":1}'), piece("b", '{"__op":1,"id":1}', '{"v":2}')) == {"b": ("v",)}


def test_only_the_first_rows_are_read() -> None:
    assert names_in(*(piece("a", json.dumps({f"n{number}": 1})) for number in range(300))) == {
        "a": tuple(sorted(f"n{number}" for number in range(100)))
    }
    many = piece("a", *('{"id":1}' for _ in range(100)), '{"more":1}')
    assert names_in(many, many) == {"a": ("id",)}


def test_text_that_cannot_be_read_names_nothing_and_is_not_read_again() -> None:
    torn = '{"a":1,"b":'
    assert names_in(piece("t", '{"a":1}', torn, '{"c":1}')) == {"t": ("a",)}
    assert names_in(piece("t", torn), piece("t", '{"c":1}')) == {}
    assert names_in(piece("t", "[" * 100_000), piece("t", "[1]")) == {}
    large = json.dumps({"a": "x" * (2 << 20)})
    assert names_in(piece("t", large), piece("t", large)) == {}


def test_a_lone_surrogate_can_be_sent() -> None:
    assert names_in(piece("t", r'{"\ud800":1}')) == {"t": ("?",)}


@given(st.lists(st.dictionaries(st.text(st.characters(codec="utf-8")), st.text() | st.integers()), max_size=9))
def test_all_names_are_found(rows: list[dict[str, str | int]]) -> None:
    expected = {name for row in rows for name in row if "__op" not in row}
    found = names_in(piece("t", *map(json.dumps, rows))) if rows else {}
    assert set(found.get("t", ())) == expected
