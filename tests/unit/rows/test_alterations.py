"""The statement that changes a table's columns."""

from __future__ import annotations

import pytest

from starrocks_txn_sink.rows.alterations import alteration
from starrocks_txn_sink.rows.target import TargetColumn, parse_type


@pytest.mark.parametrize(("nullable", "text"), [(True, "NULL"), (False, "NOT NULL")])
def test_a_column_that_must_have_a_value_stays_one_that_must(nullable: bool, text: str) -> None:
    column = TargetColumn("n", parse_type("INT"), nullable=nullable)
    statement = alteration("`shop`.`t`", {"new": "DATE"}, {column: parse_type("BIGINT")})
    assert statement == f"ALTER TABLE `shop`.`t` ADD COLUMN `new` DATE NULL, MODIFY COLUMN `n` BIGINT {text}"
