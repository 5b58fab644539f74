"""What is reported of rejected rows: table, count, rule, column; never a value unless it is asked for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.errors import CommitFailed, QueryFailed, RedirectRefused, RowsRejected, StarRocksSinkError
from starrocks_txn_sink.writer.rejections import Explainer, errors_in, reasons

LIMIT = Deadline.after(60, SystemClock())
ERROR = RowsRejected("The server rejected rows: abnormal data", label="l1", status="FAILED")
NO_ROWS = CommitFailed("The server did not commit: No rows were imported from upstream", label="l1", status="FAILED")
SECRET = "4111-1111"
LOG = "http://be:8040/api/_load_error_log?file=error_log_1"


def load(table: str, rejected: object, url: str | None = "") -> dict[str, Any]:
    return {"label": "l1", "tablename": table, "state": "CANCELLED", "numrowsabnormal": rejected, "trackingurl": url}


def explain(
    error: StarRocksSinkError, *loads: dict[str, Any], log: str | Exception = "", values: bool = False
) -> StarRocksSinkError:
    """The error after the server's answers; `log` is what its log has."""

    def ask(sql: str, parameters: tuple[object, ...], _: Deadline) -> list[dict[str, Any]]:
        assert (sql, parameters) == ("SHOW ALL STREAM LOAD FOR `l1` FROM `shop`", ())
        return list(loads)

    def read(url: str, _: Deadline) -> str:
        assert url == LOG
        if isinstance(log, Exception):
            raise log
        return log

    return Explainer("shop", ask, read, values).explain(error, "l1", LIMIT)


TOO_LONG = "a text that is too long"
NOT_FIT = "a value that does not fit the column's type"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (f"Error: NULL value in non-nullable column 'k'. Row: [NULL, {SECRET}]", "NULL in a NOT NULL column, column k"),
        ("Error: Invalid argument: Value length is beyond the capacity. column=v, capacity=5", f"{TOO_LONG}, column v"),
        (f"Error: Invalid argument: Value is overflow. column=id, value={SECRET}", "a value out of range, column id"),
        ("Error: Invalid argument: Unable to cast string value to INT. value=x, column=n", f"{NOT_FIT}, column n"),
        (f"Error: Invalid argument: Failed to parse value as array, value={SECRET}, column=v", f"{NOT_FIT}, column v"),
        (f"Error: Value '{SECRET}' is out of range. The type of 'c1' is DATE'. Row: x", f"{NOT_FIT}, column c1"),
        (f"Error: String '{SECRET}' is too long. The max length of 'v' is 5. Row: x", f"{TOO_LONG}, column v"),
        ("Error: value does not fit type int, column: n. Row: []", f"{NOT_FIT}, column n"),
        (f"Error: something about {SECRET}", "a reason of another kind"),
    ],
)  # fmt: skip
def test_reasons_name_rule_and_column(line: str, reason: str) -> None:
    assert reasons([line]) == [f"{reason} (1)"]


def test_only_lines_of_errors_are_reasons() -> None:
    log = (
        "Error: Invalid argument: Unable to cast string value to BIGINT. value=two, column=n\n"
        "be/src/formats/json/nullable_column.cpp:41 add_numeric_column<T>(data_column)\n"
        'be/src/exec/file_scanner/json_scanner.cpp:559 _construct_column(value). Row: {"id":2,"n":"two"}\n'
        "Failed to access  err: Internal error: URL using bad/illegal format or missing URL\n"
    )
    assert reasons(errors_in(log)) == [f"{NOT_FIT}, column n (1)"]


@given(st.lists(st.text(alphabet="0123456789", min_size=8, max_size=12), min_size=1, max_size=9))
def test_no_value_gets_through(values: list[str]) -> None:
    log = "\n".join(f"Error: Value '{value}' is out of range. Row: [{value}]" for value in values)
    text = str(explain(ERROR, load("t", len(values), LOG), log=log))
    assert not any(value in text for value in values)


def test_the_error_names_tables_counts_and_reasons() -> None:
    log = "Error: NULL value in non-nullable column 'k'. Row: [NULL]"
    error = explain(ERROR, load("b", "1"), load("a", 2, LOG), load("good", 0), load("empty", -1), log=log)
    text = str(error)
    assert "The server rejected 2 rows of a, 1 row of b, so" in text
    assert "NULL in a NOT NULL column, column k (1)" in text
    assert "label=l1" in text
    assert error.context["table"] == "a, b"
    assert isinstance(error, RowsRejected)
    assert error.by_table == {"a": (2, "NULL in a NOT NULL column, column k (1)"), "b": (1, "")}
    assert "quarantine" in text


def test_values_are_shown_when_asked_for() -> None:
    log = f"Error: bad. Row: [{SECRET}]"
    assert SECRET in str(explain(ERROR, load("a", 1, LOG), log=log, values=True))
    assert SECRET not in str(explain(ERROR, load("a", 1, LOG), log=log))


@pytest.mark.parametrize("log", ["", RedirectRefused("not allowed"), QueryFailed("no"), "be/src/x.cpp:1\n"])
def test_a_log_that_says_nothing_changes_neither_kind_nor_counts(log: str | Exception) -> None:
    error = explain(NO_ROWS, load("t", 1, LOG), log=log)
    assert isinstance(error, RowsRejected)
    assert "1 row of t, so nothing of the transaction became visible: the server does not say why" in str(error)


def test_a_server_that_does_not_answer_hides_nothing() -> None:
    def ask(*_: object) -> list[dict[str, Any]]:
        raise QueryFailed("no")

    for error in (ERROR, NO_ROWS):
        assert Explainer("shop", ask).explain(error, "l1", LIMIT) is error
        assert Explainer("shop", None).explain(error, "l1", LIMIT) is error
        assert explain(error) is error


@pytest.mark.parametrize("rejected", [-1, 0, None])
def test_the_servers_own_trouble_is_no_rejection(rejected: int | None) -> None:
    """An automatic partition that could not be made, too many versions, a lost backend: all say that no rows came."""
    assert explain(NO_ROWS, load("t", rejected), load("u", rejected)) is NO_ROWS


def test_a_bad_row_that_is_alone_in_its_table_is_a_rejection() -> None:
    error = explain(NO_ROWS, load("t", 1, None), load("u", 0))
    assert isinstance(error, RowsRejected)
    assert error.context["table"] == "t"


def test_other_failures_of_a_commit_are_no_question_of_rows() -> None:
    other_error = CommitFailed("The server did not commit: too many versions")
    assert explain(other_error, load("t", 1)) is other_error
