"""Columns against the types of the source's schema: when the server is asked again, and what follows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from starrocks_txn_sink.coordinator.model import ColumnNeeds
from starrocks_txn_sink.errors import NarrowColumn
from starrocks_txn_sink.rows.target import TargetColumn, parse_type
from starrocks_txn_sink.writer.table_checks import NarrowColumns


class Server:
    """A table's columns, `cached` ones and those of `now`; and how often it was asked again."""

    def __init__(self, cached: str, now: str | None = None) -> None:
        self.cached, self.now, self.asked = cached, now or cached, 0

    def columns(self, _: str, again: bool) -> Sequence[TargetColumn]:
        self.asked += again
        return (TargetColumn("n", parse_type(self.now if again else self.cached)),)


def refused(column: TargetColumn, source: str) -> str:
    narrow = NarrowColumns(lambda: [("t", {"n": source})], lambda *_: (column,), lambda _: (), True)
    with pytest.raises(NarrowColumn) as error:
        narrow()
    return error.value.advice


def look(server: Server, source: str, *, widens: bool, declared: Sequence[str] = ()) -> NarrowColumns:
    narrow = NarrowColumns(lambda: [("t", {"n": source})], server.columns, lambda _: declared, widens)
    narrow()
    return narrow


def test_a_wider_type_is_found_once_the_server_confirms_it() -> None:
    server = Server("int(11)")
    assert look(server, "BIGINT", widens=True).missing() == {"t": {"n": ColumnNeeds(types=("BIGINT",))}}
    assert server.asked == 1
    assert look(Server("int(11)", "bigint(20)"), "BIGINT", widens=True).missing() == {}


def test_columns_that_the_sink_leaves_alone_cost_no_question() -> None:
    """A table may have narrower columns for years; their statements help once the server rejects a row."""
    server = Server("int(11)")
    narrow = look(server, "BIGINT", widens=False)
    assert (narrow.missing(), server.asked) == ({}, 0)
    assert narrow.statements == ["ALTER TABLE `t` MODIFY COLUMN `n` BIGINT NULL"]
    assert narrow.advice_for("t", "n") == (
        " The source's column is BIGINT, and the table's INT. Run ALTER TABLE `t` MODIFY COLUMN `n` BIGINT NULL."
    )
    assert narrow.advice_for("t", "m") == ""
    assert look(server, "STRING", widens=True).statements == []
    assert server.asked == 0


def test_a_type_that_would_round_is_refused_unless_it_is_declared_or_was_changed() -> None:
    with pytest.raises(
        NarrowColumn, match=r"Column n of table t is DECIMAL\(10,2\), and the source's is DECIMAL\(12,4\)"
    ):
        look(Server("decimal(10,2)"), "DECIMAL(12,4)", widens=False)
    look(Server("decimal(10,2)", "decimal(14,4)"), "DECIMAL(12,4)", widens=False)
    look(Server("decimal(10,2)"), "DECIMAL(12,4)", widens=False, declared=["n"])
    assert look(Server("decimal(10,2)"), "DECIMAL(12,4)", widens=True).missing() == {
        "t": {"n": ColumnNeeds(types=("DECIMAL(12,4)",))}
    }


@pytest.mark.parametrize(
    ("type_", "source", "way"),
    [
        ("date", "DATETIME", "Run ALTER TABLE `t` MODIFY COLUMN `n` DATETIME NULL, and"),
        ("int(11)", "DOUBLE", "Run ALTER TABLE `t` MODIFY COLUMN `n` DOUBLE NULL, and"),
        ("bigint(20)", "DOUBLE", "Create the table anew with DOUBLE,"),
        ("int(11)", "DECIMAL(10,2)", "Create the table anew with DECIMAL(10,2),"),
        ("double", "BIGINT", "Create the table anew with BIGINT,"),
        ("decimal(20,0)", "DECIMAL(38,30)", "Create the table anew with DECIMAL(38,30),"),
    ],
)
def test_a_statement_is_said_only_if_starrocks_takes_it(type_: str, source: str, way: str) -> None:
    assert refused(TargetColumn("n", parse_type(type_)), source).startswith(way)


def test_a_key_is_created_anew_and_a_default_is_said_again() -> None:
    of_key = TargetColumn("n", parse_type("decimal(10,2)"), nullable=False, key=True)
    assert refused(of_key, "DECIMAL(12,4)").startswith("Create the table anew with DECIMAL(12,4),")
    advice = refused(TargetColumn("n", parse_type("decimal(10,2)"), defaulted=True), "DECIMAL(12,4)")
    assert "MODIFY COLUMN `n` DECIMAL(12,4) NULL, with the DEFAULT of the column behind it, and" in advice


@pytest.mark.parametrize(
    ("column", "source", "way"),
    [
        (
            TargetColumn("n", parse_type("int(11)"), defaulted=True),
            "BIGINT",
            "MODIFY COLUMN `n` BIGINT NULL, with the DEFAULT",
        ),
        (TargetColumn("n", parse_type("int(11)"), key=True), "BIGINT", "Create the table anew with BIGINT"),
        (TargetColumn("n", parse_type("int(11)")), "VARCHAR(9)", r"Create the table anew with VARCHAR(9)"),
    ],
)
def test_a_value_that_does_not_fit_is_explained_by_the_source_s_type(
    column: TargetColumn, source: str, way: str
) -> None:
    """Whether the source has widened a column that is not widened with it, or retyped it."""
    narrow = NarrowColumns(lambda: [("t", {"n": source})], lambda *_: (column,), lambda _: (), True)
    narrow()
    assert f"The source's column is {source}, and the table's INT." in narrow.advice_for("t", "n")
    assert way in narrow.advice_for("t", "n")


def test_a_column_that_gives_rows_their_places_is_not_widened() -> None:
    fixed = TargetColumn("n", parse_type("int(11)"), fixed=True)
    narrow = NarrowColumns(lambda: [("t", {"n": "BIGINT"})], lambda *_: (fixed,), lambda _: (), True)
    narrow()
    assert (narrow.missing(), narrow.statements) == ({}, [])
