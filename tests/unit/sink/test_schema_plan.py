"""The plan for columns that JSON rows need: statements from lists of columns, and what has no safe statement."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from starrocks_txn_sink.coordinator.model import ColumnNeeds, missing_of_words
from starrocks_txn_sink.errors import InputError, OptionError, UnknownColumn
from starrocks_txn_sink.options import SinkOptions, TableOptions
from starrocks_txn_sink.rows.target import TargetColumn, parse_type
from starrocks_txn_sink.rows.widening import rounds
from starrocks_txn_sink.sink.schema.plan import alter_table, plan_missing

KNOWN = {
    "t": (
        TargetColumn("id", parse_type("bigint(20)"), nullable=False, key=True),
        TargetColumn("Name", parse_type("varchar(9)")),
    )
}


def statements(missing: dict[str, dict[str, list[str]]], **tables: TableOptions) -> list[str]:
    return [change.statement(2) for change in plan_missing("shop", missing_of_words(missing), KNOWN, tables)]


def test_all_lacking_columns_of_a_table_come_in_one_statement() -> None:
    needs = {"id": ["INTEGER"], "age": ["INTEGER"], "price": ["FRACTION", "INTEGER"]}
    needs |= {"a`b": ["TEXT"], "tags": ["DOCUMENT"]}
    declared = TableOptions(types={"price": "DECIMAL(12,2)"})
    assert statements({"t": needs}, t=declared) == [
        "ALTER TABLE `shop`.`t` ADD COLUMN `age` BIGINT NULL, ADD COLUMN `price` DECIMAL(12,2) NULL, "
        "ADD COLUMN `a``b` VARCHAR(1048576) NULL, ADD COLUMN `tags` JSON NULL"
    ]


def test_columns_that_are_there_need_no_statement() -> None:
    assert statements({"t": {"id": ["TEXT"], "Name": ["LONG"]}}) == []


def test_columns_get_the_wider_types_of_the_source() -> None:
    """One statement for a table (wire contract 10.15); a declared type wins, and a key stays."""
    needs = {"id": ["=LARGEINT"], "Name": ["=VARCHAR(20)", "=VARCHAR(40)"], "new": ["=INT"]}
    assert statements({"t": needs}) == [
        "ALTER TABLE `shop`.`t` ADD COLUMN `new` INT NULL, MODIFY COLUMN `Name` VARCHAR(40) NULL"
    ]
    assert statements({"t": {"Name": ["=VARCHAR(20)"]}}, t=TableOptions(types={"Name": "VARCHAR(9)"})) == []
    assert statements({"t": {"Name": ["=STRING"]}}) == [
        "ALTER TABLE `shop`.`t` MODIFY COLUMN `Name` VARCHAR(1048576) NULL"
    ]


def test_a_column_that_must_have_a_value_stays_one_that_must() -> None:
    """MODIFY says NULL or NOT NULL anew, and StarRocks takes it (tables from all three planners go through this)."""
    name = TargetColumn("n", parse_type("int"), nullable=False)
    (change,) = alter_table(
        "shop", "t", {}, dict.fromkeys((name, replace(name, name="m", nullable=True)), parse_type("bigint"))
    )
    assert change.sql == "ALTER TABLE `shop`.`t` MODIFY COLUMN `n` BIGINT NOT NULL, MODIFY COLUMN `m` BIGINT NULL"
    assert change.widens
    assert list(alter_table("shop", "t", {}, {})) == []


@pytest.mark.parametrize(
    ("column", "source", "rounded"),
    [
        ("decimal(10,2)", "DECIMAL(12,4)", True),
        ("decimal(10,2)", "DECIMAL(12,2)", False),  # rejected
        ("decimal(10,2)", "DOUBLE", True),
        ("int(11)", "BIGINT", False),
        ("int(11)", "DECIMAL(9,1)", True),
        ("int(11)", "DECIMAL(9,0)", False),
        ("bigint(20)", "FLOAT", True),
        ("double", "DECIMAL(15,3)", False),
        ("double", "BIGINT", True),
        ("double", "INT", False),
        ("float", "DOUBLE", True),
        ("date", "DATETIME", True),
        ("datetime", "DATE", False),
        ("tinyint(1)", "INT", False),
        ("varchar(2)", "STRING", False),
        ("json", "DOUBLE", False),
    ],
)
def test_pairs_of_types_whose_values_change_in_silence(column: str, source: str, rounded: bool) -> None:
    assert rounds(parse_type(column), parse_type(source)) is rounded


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ({"t": {"name": ["TEXT"]}}, "name the column name, and the table has Name"),
        ({"t": {"new": ["TEXT"], "NEW": ["TEXT"]}}, "name the column NEW, and the table has new"),
        ({"t": {"new": ["TEXT", "LONG"]}}, "holds all values of the column new .*: integers of 64 bits, texts"),
        ({"t": {"new": ["HUGE"]}}, "numbers beyond all types"),
        ({"none": {"id": ["LONG"]}}, "no table none, .* nothing names its primary key"),
    ],
)
def test_what_has_no_safe_statement_is_refused_by_name(missing: dict[str, Any], message: str) -> None:
    with pytest.raises(UnknownColumn, match=message) as refused:
        statements(missing)
    assert refused.value.advice


def test_a_declared_type_settles_a_mixture() -> None:
    (sql,) = statements({"t": {"new": ["TEXT", "LONG"]}}, t=TableOptions(types={"new": "JSON"}))
    assert sql.endswith("ADD COLUMN `new` JSON NULL")


def test_a_name_that_no_statement_can_hold_is_an_error() -> None:
    with pytest.raises(InputError, match="control character"):
        statements({"t": {"a\nb": ["TEXT"]}})


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["TEXT", "=DECIMAL(10,2)"], "DECIMAL(10,2)"),
        (["TEXT", "=DATE"], "DATE"),
        (["INTEGER", "=INT", "=BIGINT"], "BIGINT"),
        (["TEXT", "=STRING"], "VARCHAR(1048576)"),
        (["TEXT", "=DATE", "=BOOLEAN"], "VARCHAR(1048576)"),
    ],
)
def test_the_source_s_schema_comes_before_the_values(words: list[str], kind: str) -> None:
    """A column whose type has changed at the source gets the wider one; without one the values decide."""
    assert statements({"t": {"new": words}}) == [f"ALTER TABLE `shop`.`t` ADD COLUMN `new` {kind} NULL"]
    (declared,) = statements({"t": {"new": words}}, t=TableOptions(types={"new": "JSON"}))
    assert declared.endswith("`new` JSON NULL")


# --- new tables ---


@pytest.mark.parametrize(
    ("type_", "key"), [("STRING", "VARCHAR(65533)"), ("DECIMAL(20,0)", "LARGEINT"), ("VARCHAR(12)", "VARCHAR(12)")]
)
def test_a_key_by_the_schema_has_a_type_of_keys(type_: str, key: str) -> None:
    (statement,) = statements({"new": {"id": ["TEXT", f"={type_}"]}}, new=TableOptions(keys=["id"]))
    assert f"(`id` {key} NOT NULL)" in statement
    with pytest.raises(UnknownColumn, match="would be DOUBLE"):
        statements({"new": {"id": ["FRACTION", "=DOUBLE"]}}, new=TableOptions(keys=["id"]))


def test_a_table_is_created_with_its_declared_key_first() -> None:
    needs = {"note": ["TEXT"], "id": ["LONG"], "region": ["TEXT"]}
    assert statements({"new": needs}, new=TableOptions(keys=["region", "id"])) == [
        "CREATE TABLE IF NOT EXISTS `shop`.`new` (`region` VARCHAR(65533) NOT NULL, `id` BIGINT NOT NULL, "
        "`note` VARCHAR(1048576) NULL) PRIMARY KEY (`region`, `id`) DISTRIBUTED BY HASH (`region`, `id`) "
        'PROPERTIES ("replication_num" = "2")'
    ]
    (change,) = plan_missing("shop", {"new": {"id": ColumnNeeds(("LONG",))}}, {}, {"new": TableOptions(keys=["id"])})
    assert "PROPERTIES" not in change.statement(None)


@pytest.mark.parametrize(
    ("needs", "declared", "message"),
    [
        ({"id": ["LONG"]}, {"keys": ["ID"]}, "names ID, which the rows do not have"),
        ({"id": ["FRACTION"]}, {"keys": ["id"]}, "key column id of the new table new would be DOUBLE"),
        ({"id": ["LONG"]}, {"keys": ["id"], "types": {"id": "DECIMAL(20)"}}, "would be DECIMAL"),
        ({"id": ["LONG"], "Id": ["LONG"]}, {"keys": ["id"]}, "both id and Id"),
    ],
)
def test_a_table_that_cannot_be_is_refused(needs: dict[str, Any], declared: dict[str, Any], message: str) -> None:
    with pytest.raises(UnknownColumn, match=message):
        statements({"new": needs}, new=TableOptions(**declared))


def test_an_unsigned_key_is_a_largeint_if_it_is_declared() -> None:
    (sql,) = statements({"new": {"id": ["LONG"]}}, new=TableOptions(keys=["id"], types={"id": "LARGEINT"}))
    assert "(`id` LARGEINT NOT NULL)" in sql


# --- as the user declares them ---


@pytest.mark.parametrize(
    "declared",
    [
        {"keys": ["a", "a"]},
        {"keys": [""]},
        {"types": {"a": "INT; DROP TABLE t"}},
        {"types": {"a": "INT NULL -- x"}},
        {"types": {"a": 1}},
    ],
)
def test_keys_and_types_are_checked_at_once(declared: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=r"tables\['t'\]"):
        SinkOptions(load_url="fe:1", database="d", delivery="at-least-once", tables={"t": TableOptions(**declared)})


def test_keys_and_types_travel_with_the_options() -> None:
    declared = TableOptions(keys=["id"], types={"tags": "ARRAY<VARCHAR(20)>"}, properties={"timezone": "UTC"})
    options = SinkOptions(load_url="fe:1", database="d", delivery="at-least-once", tables={"t": declared})
    assert options.options_of("t") == TableOptions(keys=("id",), types=declared.types, properties=declared.properties)
