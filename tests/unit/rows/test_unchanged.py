"""Rows that leave unchanged values out are sent whole: against a reference that folds all rows of a key."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink.coordinator.model import Chunk, LoadAction, RowIndex
from starrocks_txn_sink.errors import InputError, QueryRefused
from starrocks_txn_sink.options.table_rules import DELETED
from starrocks_txn_sink.rows.body import UniqueRows, with_unchanged_values
from starrocks_txn_sink.rows.columns import DELETING, UNCHANGED
from starrocks_txn_sink.rows.keys import KeyColumn
from starrocks_txn_sink.rows.member_names import MemberNames
from starrocks_txn_sink.rows.target import TargetColumn, parse_type
from starrocks_txn_sink.rows.unchanged import MARK, UnchangedValues, with_unchanged
from tests.support.lane_driver import LABEL, LaneDriver, small_limits
from tests.support.model_server import ModelServer

KEYS = {"t": [KeyColumn.of("id", "BIGINT", None)]}
TYPES = {"id": "bigint(20)", "note": "varchar(65533)", "doc": "json", "tags": "array<int(11)>", "raw": "varbinary"}
TYPES["raws"] = "array<varbinary>"
IN_TABLE = {n: {"note": f"it's {n}", "doc": f'{{"n": {n}.10}}', "tags": "[1,2]"} for n in range(5)}


class Table:
    """A table's answers to the statements, and how many there were."""

    def __init__(self, **types: str) -> None:
        self.types = TYPES | types
        self.statements: list[str] = []

    def __call__(self, sql: str, parameters: tuple[object, ...]) -> list[tuple[Any, ...]]:
        self.statements.append(sql)
        if "information_schema" in sql:
            assert parameters == ("shop", "t")
            return list(self.types.items())
        names = re.findall(r"`(\w+)`", sql.partition(" FROM ")[0])
        assert names[0] == "id"
        ids = {int(str(key)) for key in parameters} & IN_TABLE.keys()
        return [(str(key), *(IN_TABLE[key][name] for name in names[1:])) for key in sorted(ids)]


def unique(table: Table) -> UniqueRows:
    unchanged = UnchangedValues("shop", table, KEYS)
    unchanged.tables.add("t")
    return UniqueRows(KEYS, unchanged)


def text(row: dict[str, Any], *names: str) -> bytes:
    members = {name: (value, json.dumps(value)) for name, value in row.items()}
    return ("," + (with_unchanged(members, names) if names else json.dumps(row))).encode()


def deleted(key: int) -> bytes:
    return f',{DELETING},"id":{key}}}'.encode()


def chunk(rows: list[bytes], positions: int = 1) -> Chunk:
    content, filled = b"".join(rows), Chunk("p", "t")
    index = RowIndex(np.full(len(rows), positions), np.cumsum([0, *map(len, rows)]))
    filled.append(memoryview(content), len(rows), index)
    return filled


def sent(subject: UniqueRows, *loads: list[bytes], newest_first: bool = False) -> list[dict[str, Any]]:
    chunks = [chunk(load) for load in loads]
    rows: list[dict[str, Any]] = []
    for number in reversed(range(len(chunks))) if newest_first else range(len(chunks)):
        older = tuple(chunks[:number]) if newest_first else ()
        selection = subject.select(LoadAction("L", "t", (chunks[number],), newest_first, older))
        rows += json.loads(b"[" + b"".join(selection.pieces)[1:] + b"]") if selection.pieces else []
        replaced = sum(count.rows for count in selection.replaced.values())
        assert replaced <= len(loads[number])
    assert UNCHANGED not in json.dumps(rows)
    return rows


Row = tuple[int, dict[str, Any] | None]  # key; None is a delete, a value None in the row is unchanged
NAMES = ("note", "doc")


@st.composite
def histories(draw: st.DrawFn) -> list[list[Row]]:
    value = st.none() | st.integers(0, 99)
    present = dict.fromkeys(IN_TABLE, True)
    loads = []
    for _ in range(draw(st.integers(1, 4))):
        load: list[Row] = []
        for key in draw(st.lists(st.sampled_from(list(IN_TABLE)), min_size=1, max_size=8)):
            if draw(st.integers(0, 9)) == 0:
                load.append((key, None))
                present[key] = False
            else:
                row = {name: draw(value if present[key] else st.integers(0, 99)) for name in NAMES}
                load.append((key, row))
                present[key] = True
        loads.append(load)
    return loads


@given(histories())
def test_a_column_keeps_the_value_that_it_had_before_the_row(loads: list[list[Row]]) -> None:
    expected: dict[int, dict[str, Any] | None] = {}
    texts: list[list[bytes]] = []
    for load in loads:
        texts.append([])
        for key, row in load:
            if row is None:
                expected[key] = None
                texts[-1].append(deleted(key))
                continue
            before = expected.get(key) or {
                "note": IN_TABLE[key]["note"],
                "doc": json.loads(IN_TABLE[key]["doc"]),
            }
            expected[key] = {name: before[name] if row[name] is None else row[name] for name in NAMES}
            names = [name for name in NAMES if row[name] is None]
            texts[-1].append(text({"id": key, **row}, *names))
    rows = sent(unique(Table()), *texts, newest_first=True)
    columns_by_id = {row["id"]: None if "__op" in row else {name: row[name] for name in NAMES} for row in rows}
    assert len(rows) == len(expected)
    assert columns_by_id == expected


def test_values_come_from_the_table_as_json_of_their_types_and_many_keys_take_one_statement() -> None:
    table = Table()
    rows = sent(unique(table), [text({"id": n, "n": n}, "note", "doc", "tags") for n in (3, 1)])
    assert rows == [{"id": n, "n": n, "note": f"it's {n}", "doc": {"n": n + 0.1}, "tags": [1, 2]} for n in (3, 1)]
    assert len(table.statements) == 2
    assert (
        "SELECT CAST(`id` AS VARCHAR), `doc`, CAST(`note` AS VARCHAR), json_query(to_json(row(`tags`)), '$.col1') "
        in table.statements[1]
    )


def inserted(row: dict[str, Any], *names: str) -> bytes:
    members = {name: (value, json.dumps(value)) for name, value in row.items()}
    return ("," + with_unchanged(members, names, inserted=True)).encode()


def test_an_insert_that_leaves_values_out_has_those_of_the_row_that_was_deleted_in_front_of_it() -> None:
    """A changed key: the table has the former row, or the label has, under a key that it had only for a while."""
    moves = [deleted(1), inserted({"id": 11, "n": 5}, "note")]
    there = [text({"id": 9, "note": "of the label", "n": 1}), deleted(9), inserted({"id": 2, "n": 2}, "note")]
    whole = {"id": 11, "n": 5, "note": "it's 1"}
    cases: list[tuple[list[list[bytes]], dict[str, Any]]] = [
        ([moves], whole),
        ([moves[:1], moves[1:]], whole),
        ([[*moves, text({"id": 11, "n": 6}, "note")]], whole | {"n": 6}),
        ([[*moves, deleted(11), inserted({"id": 12, "n": 7}, "note")]], {"id": 12, "n": 7, "note": "it's 1"}),
        ([there], {"id": 2, "n": 2, "note": "of the label"}),
        ([[*moves, deleted(11), inserted({"id": 1, "n": 8}, "note")]], {"id": 1, "n": 8, "note": "it's 1"}),
        ([[deleted(1), inserted({"id": 1, "n": 9}, "note")]], {"id": 1, "n": 9, "note": "it's 1"}),
        # The source sends a change again: the former row is not there any more, and the new one is.
        ([[deleted(77), inserted({"id": 2, "n": 9}, "note")]], {"id": 2, "n": 9, "note": "it's 2"}),
        ([[*moves, inserted({"id": 11, "n": 5}, "note")]], whole),
        ([[inserted({"id": 3, "n": 9}, "note")]], {"id": 3, "n": 9, "note": "it's 3"}),
    ]
    for loads, expected in cases:
        rows = sent(unique(Table()), *loads, newest_first=True)
        assert {row["id"]: row for row in rows}[expected["id"]] == expected


@pytest.mark.parametrize(
    "rows",
    [
        [inserted({"id": 11}, "note")],
        [text({"id": 1, "note": "x"}), inserted({"id": 11}, "note")],
        [deleted(1), text({"id": 11}, "note")],
        [deleted(1), text({"id": 2, "note": "x"}), inserted({"id": 11}, "note")],
        [deleted(77), inserted({"id": 11}, "note")],
    ],
)
def test_values_of_an_insert_are_not_taken_from_another_row(rows: list[bytes]) -> None:
    with pytest.raises(InputError, match="no row with this key"):
        sent(unique(Table()), rows)


def test_the_delete_in_front_is_of_the_same_source_transaction() -> None:
    chunks = [chunk([deleted(1)], 1), chunk([inserted({"id": 11}, "note")], 2)]
    with pytest.raises(InputError, match="position=2, but the table has no row with this key"):
        unique(Table()).select(LoadAction("L", "t", (chunks[1],), True, (chunks[0],)))


def test_a_load_without_such_rows_asks_nothing() -> None:
    table = Table()
    assert sent(unique(table), [text({"id": 1, "note": "x"})]) == [{"id": 1, "note": "x"}]
    assert not table.statements


def test_rows_of_a_dead_letter_are_completed_one_by_one() -> None:
    table = Table()
    rows = [text({"id": 1}, "note"), text({"id": 2, "note": "y"}), text({"id": 1, "n": 3}, "note"), deleted(2)]
    unchanged = UnchangedValues("shop", table, KEYS)
    pieces = with_unchanged_values([memoryview(row) for row in rows], "t", KEYS["t"], unchanged)
    first, second, third, last = (json.loads(piece[1:]) for piece in map(bytes, pieces))
    assert first == {"id": 1, "note": "it's 1"}
    assert second == {"id": 2, "note": "y"}
    assert third == {"id": 1, "n": 3, "note": "it's 1"}
    assert last == {"__op": 1, "id": 2}
    with pytest.raises(InputError, match="no primary key"):
        with_unchanged_values([memoryview(rows[0])], "t", [], unchanged)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([text({"id": 77}, "note")], r"leaves out note.* at source_partition=p position=1, .*has no row with this key"),
        ([deleted(1), text({"id": 1}, "note")], "has no row with this key"),
        ([text({"id": None}, "note")], "has no row with this key"),
        ([text({"id": 1}, "raw")], "leaves out column raw.*of type varbinary"),
        ([text({"id": 1}, "raws")], "leaves out column raws.*of type array<varbinary>"),
        ([text({"id": 1}, "gone")], "leaves out column gone.*not in the table"),
    ],
)
def test_a_value_that_is_nowhere_is_an_error(rows: list[bytes], message: str) -> None:
    with pytest.raises(InputError, match=message) as failure:
        sent(unique(Table()), rows)
    assert "REPLICA IDENTITY FULL" in str(failure.value.advice)


def test_a_refused_read_names_table_and_columns() -> None:
    def refused(sql: str, _: tuple[object, ...]) -> list[tuple[Any, ...]]:
        if "information_schema" in sql:
            return list(TYPES.items())
        raise QueryRefused("StarRocks refused a statement over the MySQL protocol: no", place="leader", number=1064)

    subject = UniqueRows(KEYS, UnchangedValues("shop", refused, KEYS, {"t"}))
    with pytest.raises(QueryRefused, match=r"Rows of table t leave out note, tags,.*refused to read") as failure:
        sent(subject, [text({"id": 1}, "note", "tags")])
    assert "REPLICA IDENTITY FULL" in failure.value.advice
    assert failure.value.context == {"table": "t", "place": "leader", "number": 1064}


def test_the_mark_is_in_no_string() -> None:
    inside = text({"id": 1, "note": f'"{UNCHANGED}":["doc"]'})
    assert MARK not in inside
    assert MARK in text({"id": 1}, "note")


def test_a_table_without_a_known_key_refuses_such_a_row_by_its_place() -> None:
    batch = pa.record_batch(
        {
            "source_partition": ["p"],
            "position": [7],
            "table": ["u"],
            "transaction_end": [True],
            "payload": [text({"id": 1, "n": 2}, "note").decode()],
        }
    )
    for completed in (None, UnchangedValues("shop", Table(), KEYS)):
        names = MemberNames(lambda *_: None, lambda *_: None, lambda _: True, refuse=False, completed=completed)
        with pytest.raises(InputError, match=r"table u has columns without a value.*\(note\) at .*7.*no primary key"):
            names(batch)


def test_a_row_with_unchanged_columns_marks_its_table() -> None:
    completed = UnchangedValues("shop", Table(), KEYS)
    names = MemberNames(
        lambda *_: None, lambda *_: frozenset({"id", "n", "note"}), lambda _: True, refuse=True, completed=completed
    )
    batch = pa.record_batch(
        {"source_partition": ["p"], "position": [7], "table": ["t"], "transaction_end": [True],
         "payload": [text({"id": 1, "n": 2}, "note").decode()]}
    )  # fmt: skip
    names(batch)
    assert completed.tables == {"t"}
    assert names.by_table == {"t": {"id", "n", "note"}}, "the source has lost no column"


def test_a_held_lane_takes_values_from_chunks_that_it_sends_later() -> None:
    table, server = Table(), ModelServer()
    unchanged = UnchangedValues("shop", table, KEYS)
    unchanged.tables.add("t")
    limits = small_limits(chunk_bytes=30, body_bytes=60)
    lane = LaneDriver(server, limits, keys=KEYS, spill=lambda _: True, hold=True, unchanged=unchanged)
    rows: list[dict[str, Any]] = [{"id": 1, "n": 0, "note": "first"}, {"id": 2, "n": 0, UNCHANGED: ["note"]}]
    rows += [{"id": 1, "n": n, UNCHANGED: ["note"]} for n in range(1, 9)]
    for position, row in enumerate(rows, 1):
        lane.write_rows("p", "t", [row])
        lane.end("p", position)
    lane.finish()
    lane.commit()
    sent_rows = [row for _, body in server.history[LABEL].loads for row in json.loads(body)]
    assert sorted(sent_rows, key=lambda row: row["id"]) == [
        {"id": 1, "n": 8, "note": "first"},
        {"id": 2, "n": 0, "note": "it's 2"},
    ]
    assert len(table.statements) == 2


def test_a_deleted_row_that_stays_keeps_the_values_of_columns_that_came_later() -> None:
    """The query knew `note` when it began; `doc` came since, by hand; `made` is generated."""
    table = Table()
    names = ["id", "note", "doc"]
    now = [TargetColumn(name, parse_type(TYPES[name]), key=name == "id") for name in names]
    now.append(TargetColumn("made", parse_type("int"), generated=True))
    unchanged = UnchangedValues("shop", table, KEYS, columns_now=lambda _: now)
    unchanged.tables.add("t")
    gone = {"id": 1, DELETED: True}
    kept = {"note": "it's 1", "doc": {"n": 1.1}, DELETED: True}
    assert sent(UniqueRows(KEYS, unchanged), [text(gone, "note")]) == [{"id": 1, **kept}]
    update = {"id": 1, "note": "new", "doc": {"a": 2}, DELETED: False}
    assert sent(UniqueRows(KEYS, unchanged), [text(update), text(gone, "note")]) == [update | {DELETED: True}]
    assert len(table.statements) == 2, "what the label has needs no look into the table"
    part = text({"id": 1, "note": "new", DELETED: False}, "doc")
    assert sent(UniqueRows(KEYS, unchanged), [part, text(gone, "note")]) == [{"id": 1, **kept, "note": "new"}]
    assert sent(UniqueRows(KEYS, unchanged), [text({"id": 9, DELETED: True}, "note")]) == []
