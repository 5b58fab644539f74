"""The comparison finds what is planted: a lost row, a second copy, a wrong value, a torn sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from starrocks_demo.shop import Truth
from starrocks_demo.verdict import Verdict, compare, judge_tables
from starrocks_demo.workload import Workload, WorkloadOptions

Tables = dict[str, list[tuple[Any, ...]]]


@pytest.fixture(scope="module")
def truth() -> Truth:
    workload = Workload(WorkloadOptions(partitions=2, seed=6, bulk_every=0))
    for _ in range(40):
        for partition in workload.partitions:
            partition.next()
    return workload.truth()


@pytest.fixture
def tables(truth: Truth) -> Tables:
    return {
        name: [tuple(row) for row in getattr(truth, name).values()]
        for name in ("orders", "order_items", "order_events")
    }


def judged(truth: Truth, tables: Tables, samples: int = 10, torn_samples: int = 0) -> Verdict:
    evidence = ["sample 3: partial = 1"] if torn_samples else []
    return judge_tables(truth, tables, samples=samples, torn_samples=torn_samples, evidence=evidence)


def test_the_truth_itself_is_right(truth: Truth, tables: Tables) -> None:
    verdict = judged(truth, tables)
    assert verdict.right, verdict.differences
    assert verdict.visible == verdict.written == truth.source_transactions > 60
    assert {table.table: table.rows for table in verdict.tables} == {name: len(rows) for name, rows in tables.items()}


@pytest.mark.parametrize("name", ["orders", "order_items", "order_events"])
def test_a_lost_row(truth: Truth, tables: Tables, name: str) -> None:
    lost_row = tables[name].pop(7)
    verdict = judged(truth, tables)
    assert not verdict.right
    assert [table.missing for table in verdict.tables if table.table == name] == [1]
    assert any(f"key {lost_row[0]} is missing" in difference for difference in verdict.differences)
    assert verdict.lost == (name == "order_events")


@pytest.mark.parametrize("name", ["orders", "order_items", "order_events"])
def test_a_second_copy(truth: Truth, tables: Tables, name: str) -> None:
    tables[name].append(tables[name][3])
    verdict = judged(truth, tables)
    assert not verdict.right
    assert [table.duplicated for table in verdict.tables if table.table == name] == [1]
    assert verdict.duplicated == (name == "order_events")
    assert verdict.lost == 0


@pytest.mark.parametrize("name", ["orders", "order_items", "order_events"])
def test_a_wrong_value(truth: Truth, tables: Tables, name: str) -> None:
    *row, last = tables[name][5]
    tables[name][5] = (*row, "other" if isinstance(last, str) else last + 1)
    verdict = judged(truth, tables)
    assert [table.wrong for table in verdict.tables if table.table == name] == [1]
    assert any("should be" in difference for difference in verdict.differences)


def test_null_is_not_empty(truth: Truth, tables: Tables) -> None:
    place = next(place for place, row in enumerate(tables["order_items"]) if row[2] is None)
    item_id, order_id, _, *tail = tables["order_items"][place]
    tables["order_items"][place] = (item_id, order_id, "", *tail)
    assert not judged(truth, tables).right


def test_a_whole_transaction_lost_and_another_twice(truth: Truth, tables: Tables) -> None:
    lost_rows = [row for row in tables["order_events"] if (row[1], row[3]) == (0, 9)]
    twice = [row for row in tables["order_events"] if (row[1], row[3]) == (1, 4)]
    tables["order_events"] = [row for row in tables["order_events"] if row not in lost_rows] + twice
    verdict = judged(truth, tables)
    assert (verdict.lost, verdict.duplicated) == (1, 1)
    assert verdict.visible == verdict.written - 1
    assert "1 source transactions are lost." in verdict.differences


def test_rows_of_an_unfinished_transaction(truth: Truth, tables: Tables) -> None:
    tables["order_events"].append((-5, 0, "p0-unfinished-1", -1, 1, "orders", "insert", 8, None, 0, 0))
    verdict = judged(truth, tables)
    assert verdict.tables[2].unexpected == 1
    assert not verdict.right
    assert verdict.lost == 0


def test_a_torn_sample(truth: Truth, tables: Tables) -> None:
    verdict = judged(truth, tables, torn_samples=1)
    assert verdict.differences == ["1 of 10 samples saw a torn state.", "sample 3: partial = 1"]


def test_nothing_watched_or_nothing_written_proves_nothing(truth: Truth, tables: Tables) -> None:
    assert not judged(truth, tables, samples=0).right
    empty = Workload(WorkloadOptions(partitions=2)).truth()
    assert not judged(empty, {name: [] for name in tables}).right


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda rows: rows[:-1], "missing"),
        (lambda rows: [*rows, rows[0]], "duplicated"),
        (lambda rows: [*rows, (99, "x")], "unexpected"),
        (lambda rows: [(1, "z"), *rows[1:]], "wrong"),
    ],
)
def test_compare_counts_each_kind(change: Callable[[list[Any]], list[Any]], kind: str) -> None:
    right = {key: (key, "abc"[key - 1]) for key in (1, 2, 3)}
    verdict = compare("t", right, change(list(right.values())))
    counts = {name: getattr(verdict, name) for name in ("missing", "duplicated", "unexpected", "wrong")}
    assert counts == {name: int(name == kind) for name in counts}
    assert not verdict.right


def test_examples_are_few() -> None:
    verdict = compare("t", {key: (key,) for key in range(1000)}, [])
    assert verdict.missing == 1000
    assert len(verdict.examples) == 5
