"""What is reported of rejected rows: table, count, rule, column; never a value unless it is asked for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.errors import CommitFailed, QueryFailed, RowsRejected, StarRocksSinkError
from starrocks_txn_sink.writer.runner import Query, explain_rejection, reasons

LIMIT = Deadline.after(60, SystemClock())
ERROR = RowsRejected("The server rejected rows: abnormal data", label="l1", status="FAILED")
SECRET = "4111-1111"


def answers(counts: list[tuple[Any, ...]], logs: list[str]) -> Query:
    """A query port that knows of these rejected rows."""
    return lambda sql, *_: counts if "FILTERED_ROWS" in sql else [("\n".join(logs),)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            f"Error: NULL value in non-nullable column 'k'. Row: [NULL, {SECRET}]",
            "NULL in a NOT NULL column, column k (1)",
        ),
        (
            f"Error: Value '{SECRET}' is out of range. The type of 'c1' is INT'. Row: x",
            "a value out of range, column c1 (1)",
        ),
        (
            f"Error: String '{SECRET}' is too long. The max length of 'v' is 5. Row: x",
            "a text that is too long, column v (1)",
        ),
        (f"Error: something about {SECRET}", "a reason of another kind (1)"),
        (
            "Error: value does not fit type int, column: n (3 rows, first: row 2)",
            "a value that does not fit the column's type, column n (3)",
        ),
    ],
)
def test_reasons_name_rule_and_column(line: str, reason: str) -> None:
    assert reasons([line]) == [reason]


@given(st.lists(st.text(alphabet="0123456789", min_size=8, max_size=12), min_size=1, max_size=9))
def test_no_value_gets_through(values: list[str]) -> None:
    lines = [f"Error: Value '{value}' is out of range. Row: [{value}]" for value in values]
    text = str(explain_rejection(ERROR, answers([("t", len(lines))], lines), "l1", LIMIT))
    assert not any(value in text for value in values)


def test_the_error_names_tables_counts_and_reasons() -> None:
    query = answers([("b", 1), ("a", 2)], ["Error: NULL value in non-nullable column 'k'. Row: [NULL]"])
    text = str(explain_rejection(ERROR, query, "l1", LIMIT))
    assert "The server rejected 2 rows of a, 1 row of b" in text
    assert "NULL in a NOT NULL column, column k (1)" in text
    assert "label=l1" in text
    assert "quarantine" in text


def test_values_are_shown_when_asked_for() -> None:
    query = answers([("a", 1)], [f"Error: bad. Row: [{SECRET}]"])
    assert SECRET in str(explain_rejection(ERROR, query, "l1", LIMIT, values=True))
    assert SECRET not in str(explain_rejection(ERROR, query, "l1", LIMIT))


def test_a_server_that_does_not_answer_hides_nothing() -> None:
    def query(*_: object) -> list[tuple[Any, ...]]:
        raise QueryFailed("no")

    assert explain_rejection(ERROR, query, "l1", LIMIT) is ERROR
    nothing = explain_rejection(ERROR, lambda *_: [], "l1", LIMIT)
    assert nothing is ERROR


NO_ROWS = CommitFailed("The server did not commit: No rows were imported from upstream", label="l1", status="FAILED")


@pytest.mark.parametrize(
    ("counts", "logs", "kind"),
    [([], [], CommitFailed), ([("t", 2)], [], RowsRejected), ([], ["Error: NULL value. Row: [NULL]"], RowsRejected)],
)
def test_rows_are_at_fault_only_if_the_server_shows_some(
    counts: list[tuple[Any, ...]], logs: list[str], kind: type[StarRocksSinkError]
) -> None:
    error = explain_rejection(NO_ROWS, answers(counts, logs), "l1", LIMIT)
    assert type(error) is kind
    assert error.context["label"] == "l1"


def test_other_failures_of_a_commit_are_no_question_of_rows() -> None:
    other_error = CommitFailed("The server did not commit: too many versions")
    assert explain_rejection(other_error, answers([("t", 1)], []), "l1", LIMIT) is other_error
