"""One pass over the rows of a batch says which rows the checks look at, and they say what Python says alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pytest

from starrocks_txn_sink.compiled import findings
from starrocks_txn_sink.compiled.findings import Findings, RowFindings, Shapes, find
from starrocks_txn_sink.compiled.library import PURE, is_available
from starrocks_txn_sink.rows.bad_rows import BadRow
from starrocks_txn_sink.rows.columns import DELETED, PARTITION, PAYLOAD, POSITION, TABLE
from starrocks_txn_sink.rows.member_names import MemberNames
from starrocks_txn_sink.rows.row_check import RowCheck
from starrocks_txn_sink.rows.target import TargetColumn, parse_type
from starrocks_txn_sink.writer.value_checks import ValueChecks
from tests.support.depth import scaled
from tests.unit.rows.values.test_compiled_values import TYPES, random_value

pytestmark = pytest.mark.skipif(not is_available(), reason="the compiled loop is the subject")

Columns = Mapping[str, tuple[TargetColumn, ...]]


def batch(rows: list[tuple[str, str, bool]]) -> pa.RecordBatch:
    """Rows of (table, payload, deleted)."""
    tables, payload, deleted = zip(*rows, strict=True)
    return pa.RecordBatch.from_pydict(
        {
            PARTITION: pa.array(["p"] * len(rows)),
            POSITION: pa.array(range(len(rows)), pa.int64()),
            TABLE: pa.array(tables),
            PAYLOAD: pa.array(payload),
            DELETED: pa.array(deleted),
        }
    )


def random_columns(rng: random.Random) -> tuple[TargetColumn, ...]:
    name = rng.choice(("c{}", "größe_{}", "a_name_of_many_letters_{}"))
    columns = (
        TargetColumn(name.format(number), parse_type(rng.choice(TYPES)), nullable=rng.random() < 0.7, key=number == 0)
        for number in range(rng.randint(0, 6))
    )
    default = TargetColumn("d", parse_type("INT"), defaulted=True, default="7")
    return (*columns, *[default] * (rng.random() < 0.3))


def random_rows(rng: random.Random, columns: Columns) -> list[tuple[str, str, bool]]:
    """Rows of few shapes and values, as those of tables are, with odd ones between them."""
    shapes = {
        table: [[*names], rng.sample(names, k=len(names)), rng.sample(names, k=len(names) // 2)]
        for table, found in columns.items()
        if (names := [column.name for column in found]) is not None
    }
    values = [random_value(rng) for _ in range(9)]
    rows = []
    for _ in range(rng.choice((2, 5, 60))):
        table, blank, deleted = rng.choice([*columns]), rng.choice(("", "", "", " ")), rng.random() < 0.2
        names = rng.choice(shapes[table]) + rng.choices(
            ("other", "d", "d", "__op", "c\\u0030", "ü" * 9), k=rng.random() < 0.1
        )
        members = [f'"{name}":{blank}{rng.choice(values)}' for name in names]
        members = ['"__op":1'] * deleted + members
        row = f",{{{f',{blank}'.join(members)}}}"
        if rng.random() < 0.1:
            place = rng.randint(11 * deleted, len(row))  # the sink's own front is whole
            odd = rng.choice(('"', "}", "{", ",", " ", "\\u0041", "\\ud800", "\x01", "é", '{"a":1}', ',{"a":1}'))
            row = row[:place] + odd + row[place + rng.randint(0, 1) :]
        rows.append((table, row, deleted))
    return rows


@pytest.mark.parametrize("seed", range(3))
def test_each_check_says_what_python_says_alone(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    for _ in range(scaled(60)):
        columns = {f"t{number}": random_columns(rng) for number in range(rng.randint(1, 4))}
        answers = [_answers(columns), _answers(columns)]
        for _ in range(rng.randint(1, 3)):
            rows = batch(random_rows(rng, columns)).slice(rng.randint(0, 1))
            monkeypatch.delenv(PURE, raising=False)
            compiled = answers[0](rows) if rows.num_rows else None
            monkeypatch.setenv(PURE, "1")
            assert compiled == (answers[1](rows) if rows.num_rows else None), rows.column(PAYLOAD).to_pylist()


def _answers(columns: Columns) -> Callable[[pa.RecordBatch], object]:
    """What the three checks say of a batch, which share what is found."""
    shared = RowFindings(Shapes())
    texts, values = RowCheck(shared.doubtful), ValueChecks(lambda table, _: columns[table], findings=shared)
    names = MemberNames(shared.new_rows, lambda *_: None, lambda _: True, False, {})

    def without(rows: pa.RecordBatch, bad_rows: list[BadRow]) -> pa.RecordBatch:
        numbers = {row.number for row in bad_rows}
        return rows.filter(pa.array([number not in numbers for number in range(rows.num_rows)], pa.bool_()))

    def answers(rows: pa.RecordBatch) -> object:
        bad = texts(rows)
        rows = without(rows, bad)
        names(rows)
        unfit = values.bad_rows(rows)
        written = values(without(rows, unfit)).column(PAYLOAD).to_pylist()
        return bad, names.by_table, unfit, written

    return answers


def test_one_pass_serves_all_checks_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []

    def counted(payload: pa.Array, *arguments: Any, **more: Any) -> Findings | None:
        passes.append(len(payload))
        return find(payload, *arguments, **more)

    monkeypatch.setattr(findings, "find", counted)
    columns = (TargetColumn("id", parse_type("INT")),)
    shared = RowFindings(Shapes())
    values = ValueChecks(lambda *_: columns, findings=shared)
    rows = batch([("t", ',{"id":1}', False), ("t", ',{"id":2.0}', False)])
    assert (shared.doubtful(rows), shared.new_rows(rows), len(values(rows))) == ([], [0], 2)
    assert passes == [2]


def test_columns_that_change_behind_the_pass_are_those_that_count() -> None:
    columns: tuple[TargetColumn, ...] = ()
    shared = RowFindings(Shapes())
    values = ValueChecks(lambda *_: columns, findings=shared)
    rows = batch([("t", ',{"id":2.0}', False)])
    assert shared.doubtful(rows) == []
    columns = (TargetColumn("id", parse_type("INT")),)
    assert values(rows).column(PAYLOAD).to_pylist() == [',{"id":2}']


def test_a_shape_that_nobody_looked_at_is_new_again() -> None:
    shared = RowFindings(Shapes())
    rows = batch([("t", ',{"id":1}', False), ("t", ',{"torn', False)])
    assert shared.doubtful(rows) == [1]  # the batch comes again without it
    rest = rows.slice(0, 1)
    assert shared.new_rows(rest) == [0]
    assert shared.new_rows(rows) == [1]


def test_a_torn_row_leaves_no_names_behind() -> None:
    """The names of the row in front of it are not those of the row behind it."""
    rows = pa.array([',{"a":1,"b":2}', ',{"x":1,"b":', ',{"x":1,"b":2}', ',{"x":3,"b":4}'])
    found = find(rows, shapes=Shapes())
    assert found is not None
    assert (found.doubtful, found.new) == ([1], [0, 1, 2])
