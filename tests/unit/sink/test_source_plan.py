"""The plan for a source's tables: statements from schemas and lists of columns, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink import TableRules
from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.options import TableOptions
from starrocks_txn_sink.options.table_rules import RuleSet
from starrocks_txn_sink.rows.target import TargetColumn, parse_type
from starrocks_txn_sink.rows.widening import holds, wider_type
from starrocks_txn_sink.sink.schema.plan import TableLayout
from starrocks_txn_sink.sink.schema.source_plan import SourcePlan, plan_sources
from starrocks_txn_sink.sources.formats.connect_types import SourceTable, table_of_message
from tests.support.connect_schema import TIME, Field, change, decimal, field, key

ORDERS: dict[str, Field] = {
    "price": decimal(2, 10),
    "region": field("string", source_type="VARCHAR", source_length=2),
    "id": field("int64"),
}

PLAIN = TableLayout()


def source(fields: dict[str, Field], keys: Sequence[str] = ("id",), name: str = "orders") -> SourceTable:
    table = table_of_message(key({column: fields[column] for column in keys}), change(name, fields))
    assert table is not None
    return table


def column(name: str, kind: str, **more: bool) -> TargetColumn:
    words: dict[str, Any] = {"nullable": not more.get("key", False), **more}
    return TargetColumn(name, parse_type(kind), **words)


def plan(
    *sources: SourceTable,
    target: Sequence[TargetColumn] = (),
    model: str = "PRIMARY_KEYS",
    layout: TableLayout = PLAIN,
    **declared: object,
) -> SourcePlan:
    columns, models = ({"t": target}, {"t": model}) if target else ({}, {})
    return plan_sources("shop", {"t": sources}, columns, models, {"t": TableOptions(**declared)}, lambda _: layout)  # type: ignore[arg-type]


def plan_with(rules: Sequence[TableRules], *sources: SourceTable, **declared: Any) -> SourcePlan:
    options = {"t": TableOptions(**declared)}
    return plan_sources("shop", {"t": sources}, {}, {}, options, lambda _: PLAIN, RuleSet(tuple(rules)))


def statements(*sources: SourceTable, **more: object) -> list[str]:
    planned = plan(*sources, **more)  # type: ignore[arg-type]
    assert not planned.refusals
    return [change.statement(2) for change in planned.changes]


def refused(*sources: SourceTable, **more: object) -> str:
    planned = plan(*sources, **more)  # type: ignore[arg-type]
    assert planned.changes == []
    return " ".join(f"{refusal.reason} {refusal.ways}" for refusal in planned.refusals)


# --- new tables ---


def test_bytes_of_the_source_fit_a_varbinary_that_is_there() -> None:
    """The server decodes their texts; a text of the source does not fit."""
    scans = [field("string", source_type=kind) for kind in ("BYTEA", "BLOB")]
    for scan in scans:
        _bytes_fit({"id": field("int64"), "photo": field("bytes"), "scan": scan})


def _bytes_fit(fields: dict[str, Any]) -> None:
    target = (column("id", "BIGINT", key=True), column("photo", "VARBINARY"), column("scan", "VARBINARY(9)"))
    assert plan(source(fields), target=target).refusals == []
    text = {**fields, "scan": field("string", source_type="VARCHAR", source_length=2)}
    assert "scan is VARBINARY(9) in the table, which does not hold" in refused(source(text), target=target)


def test_a_table_has_its_source_s_key_first() -> None:
    assert statements(source(ORDERS, ("region", "id"))) == [
        "CREATE TABLE IF NOT EXISTS `shop`.`t` (`region` VARCHAR(8) NOT NULL, `id` BIGINT NOT NULL, "
        "`price` DECIMAL(10,2) NULL) PRIMARY KEY (`region`, `id`) DISTRIBUTED BY HASH (`region`, `id`) "
        'PROPERTIES ("replication_num" = "2")'
    ]


def test_buckets_are_the_server_s_choice_unless_they_are_given() -> None:
    (statement,) = statements(source(ORDERS), layout=TableLayout(12, {"a": '"x\\'}))
    assert 'HASH (`id`) BUCKETS 12 PROPERTIES ("replication_num" = "2", "a" = "\\"x\\\\")' in statement
    (own,) = statements(source(ORDERS), layout=TableLayout(properties={"replication_num": "1"}))
    assert own.endswith('PROPERTIES ("replication_num" = "1")')
    with pytest.raises(OptionError, match="control character"):
        statements(source(ORDERS), layout=TableLayout(properties={"a": "\n"}))


def test_a_source_without_a_key_is_refused_with_two_ways_out() -> None:
    message = refused(source(ORDERS, ()))
    assert "no key" in message
    assert 'keys = ["COLUMN"] in [target.tables.t]' in message
    assert "[[rules]] with tables = 't', history = '{0}_log' and only_history = true" in message
    (statement,) = statements(source(ORDERS, ()), keys=["id"])
    assert "PRIMARY KEY (`id`)" in statement


def test_a_named_key_gets_types_of_keys() -> None:
    (statement,) = statements(source({**ORDERS, "code": field("string")}, ()), keys=["code"])
    assert "(`code` VARCHAR(65533) NOT NULL, " in statement


@pytest.mark.parametrize(
    ("fields", "declared", "message"),
    [
        ({"id": field("double")}, {}, "id is a key of DOUBLE, which StarRocks does not take Declare a type"),
        ({"id": decimal(2, 9)}, {}, "id is a key of numbers with a fraction"),
        ({"id": field("int64")}, {"types": {"id": "JSON"}}, "id is a key of JSON"),
        ({"id": field("int64")}, {"keys": ["no"]}, "the key names no, which the rows do not have"),
        ({"id": field("int64"), "Id": field("int64")}, {}, "name both id and Id"),
        (
            {"id": field("int64"), "b": field("bytes", "io.debezium.data.Bits", length=99)},
            {},
            'b is a number of more than 64 bits.* types = { b = "TYPE" } in',
        ),
    ],
)
def test_what_has_no_type_names_the_field_and_the_ways_out(
    fields: dict[str, Field], declared: dict[str, object], message: str
) -> None:
    assert re.search(message, refused(source(fields), **declared))


def test_a_declared_type_settles_it() -> None:
    bits = field("bytes", "io.debezium.data.Bits", length=99)
    (statement,) = statements(source({"id": field("int64"), "b": bits}), types={"b": "STRING"})
    assert "`b` STRING NULL" in statement


def test_a_type_that_is_not_the_closest_one_is_noted() -> None:
    planned = plan(source({"id": field("int64"), "n": decimal(0, 50)}))
    assert planned.notes["t"] == [
        "n STRING: numbers with more digits than the 38 of a DECIMAL: the text has all of them"
    ]


def test_a_name_that_no_statement_can_hold_is_an_error() -> None:
    with pytest.raises(InputError, match="control character"):
        plan(source({"id": field("int64"), "a\nb": field("int64")}))


# --- several sources for a table ---


def test_sources_of_one_table_share_its_columns() -> None:
    first = source({"id": field("int32"), "a": field("int16")}, name="o1")
    second = source({"id": field("int64"), "b": field("string")}, name="o2")
    (statement,) = statements(first, second, keys=["id"])
    assert "(`id` BIGINT NOT NULL, `a` SMALLINT NULL, `b` VARCHAR(1048576) NULL)" in statement


def test_sources_of_one_key_in_one_table_are_refused_without_a_word_of_the_user() -> None:
    first, second = source(ORDERS, name="o1"), source(ORDERS, name="o2")
    for target in ((), KNOWN):
        reasons = refused(first, second, target=target)
        assert "it gets the rows of public.o1, public.o2: those of one key would replace one another" in reasons
        assert 'keys = ["_source_table", "id"]' in reasons
        assert 'keys = ["id"] in [target.tables.t]' in reasons
    assert statements(first, second, target=KNOWN, keys=["id"]) == []


def test_tables_of_one_name_at_several_connectors_need_the_connector_in_the_key() -> None:
    first, second = source(ORDERS), replace(source(ORDERS), connector="shop2")
    assert first.connector == "shop"
    by_table = TableRules(tables="t", metadata=["_source_table"])
    for rules in ((), (by_table,)):
        (refusal,) = plan_with(rules, first, second).refusals
        assert "the rows of public.orders of shop, public.orders of shop2" in refusal.reason
        assert 'metadata = ["_source_partition"]' in refusal.ways
        assert 'keys = ["_source_partition", ' in refusal.ways
    by_connector = TableRules(tables="t", metadata=["_source_partition"])
    planned = plan_with([by_connector], first, second, keys=["_source_partition", "id"])
    assert not planned.refusals
    assert "PRIMARY KEY (`_source_partition`, `id`)" in planned.changes[0].sql


def test_sources_that_differ_are_refused() -> None:
    first = source({"id": field("int32"), "a": field("int16")}, name="o1")
    assert "different keys: public.o1 (id), public.o2 (a)" in refused(
        first, source(ORDERS | {"a": field("int16")}, ("a",), "o2")
    )
    assert "a is SMALLINT in one of its sources and DATE in another" in refused(
        first, source({"id": field("int32"), "a": field("int32", TIME + "Date")}, name="o2")
    )


# --- tables that exist ---

KNOWN = (column("id", "bigint(20)", key=True), column("price", "decimal(10,2)"), column("region", "varchar(8)"))


def test_a_table_that_fits_needs_nothing() -> None:
    assert statements(source(ORDERS), target=KNOWN) == []


def test_columns_that_lack_are_added_in_one_statement() -> None:
    fields = {**ORDERS, "born": field("int32", TIME + "Date"), "a`b": field("boolean")}
    assert statements(source(fields), target=KNOWN) == [
        "ALTER TABLE `shop`.`t` ADD COLUMN `born` DATE NULL, ADD COLUMN `a``b` BOOLEAN NULL"
    ]


@pytest.mark.parametrize(
    ("is_", "of", "becomes"),
    [
        ("int(11)", field("int64"), "BIGINT"),
        ("tinyint(4)", field("int64", source_type="BIGINT UNSIGNED"), "LARGEINT"),
        ("float", field("double"), "DOUBLE"),
        ("decimal(10,2)", decimal(4, 11), "DECIMAL(12,4)"),
        ("varchar(8)", field("string"), "VARCHAR(1048576)"),
        ("varchar(8)", field("string", source_type="VARCHAR", source_length=9), "VARCHAR(36)"),
    ],
)
def test_a_column_that_is_too_narrow_is_widened(is_: str, of: Field, becomes: str) -> None:
    target = (column("id", "bigint(20)", key=True), column("v", is_))
    fields = {"id": field("int64"), "v": of}
    assert statements(source(fields), target=target) == [f"ALTER TABLE `shop`.`t` MODIFY COLUMN `v` {becomes} NULL"]
    for fixed in (column("v", is_, defaulted=True), column("v", is_, generated=True)):
        message = refused(source(fields), target=(target[0], fixed))
        assert "does not hold all values" in message
        assert "types = { v = " in message


@pytest.mark.parametrize(
    ("is_", "of"),
    [
        ("date", field("string")),
        ("decimal(38,30)", decimal(2, 20)),
        ("int(11)", field("double")),
        ("varbinary", field("string")),
    ],
)
def test_a_column_that_cannot_be_widened_is_refused_unless_the_user_says_that_values_fit(is_: str, of: Field) -> None:
    target = (column("id", "bigint(20)", key=True), column("v", is_))
    fields = {"id": field("int64"), "v": of}
    assert "does not hold all values of" in refused(source(fields), target=target)
    assert statements(source(fields), target=target, types={"v": str(parse_type(is_))}) == []


def test_a_key_column_cannot_be_widened() -> None:
    target = (column("id", "int(11)", key=True), column("price", "decimal(10,2)"), column("region", "varchar(8)"))
    assert "id is INT in the table, which does not hold all values of BIGINT" in refused(source(ORDERS), target=target)


def test_a_key_that_the_source_s_key_does_not_determine_is_refused() -> None:
    target = (
        column("id", "bigint(20)", key=True),
        column("region", "varchar(8)", key=True),
        column("price", "decimal(10,2)"),
    )
    message = refused(source(ORDERS), target=target)
    assert "has region, which the source's key (id) does not determine" in message
    assert "leaves the old row, and a delete without it deletes nothing" in message
    assert 'keys = ["id", "region"] in [target.tables.t]' in message
    assert statements(source(ORDERS), target=target, keys=["id", "region"]) == []


def test_a_key_that_is_coarser_than_the_source_s_is_refused() -> None:
    assert "rows would replace one another" in refused(source(ORDERS, ("id", "region")), target=KNOWN)


def test_a_history_table_needs_no_key() -> None:
    target = (column("id", "bigint(20)", key=True), column("price", "decimal(10,2)"), column("region", "varchar(8)"))
    assert statements(source(ORDERS, ()), target=target, model="DUP_KEYS") == []
    assert "takes no deletes" in refused(source(ORDERS), target=target, model="UNIQUE_KEYS")
    assert "the first delete stops" in plan(source(ORDERS, ()), target=target, model="DUP_KEYS").notes["t"][-1]


def test_values_that_no_column_holds_are_said_with_their_columns() -> None:
    fields = {
        "id": field("string", optional=False),
        "rate": field("double"),
        "at": field("int64", "io.debezium.time.MicroTimestamp"),
        "day": field("int32", "io.debezium.time.Date"),
        "doc": field("string", "io.debezium.data.Json"),
        "n": field("int32"),
        "note": field("string"),
        "short": field("string", source_type="VARCHAR", source_length=8),
        "wide": field("string", source_type="VARCHAR", source_length=1 << 20),
        "days": {**field("array"), "items": field("int32", "io.debezium.time.Date")},
        "notes": {**field("array"), "items": field("string")},
    }
    assert plan(source(fields)).limits == {
        "primary keys of more than 128 bytes": ["t.id"],
        "NaN and Infinity": ["t.rate"],
        "infinity, years before 1 and after 9999, and the date 0000-00-00": ["t.at", "t.day", "t.days"],
        "documents of more than 1,048,576 bytes, or with numbers that a DOUBLE rounds": ["t.doc"],
        "texts of more than 1,048,576 bytes": ["t.note", "t.wide"],
        "elements of more than 65,533 bytes": ["t.notes"],
    }


def test_the_name_of_the_server_s_own_column_is_refused_with_a_rule_that_works() -> None:
    orders = source({**ORDERS, "__OP": field("int32")})
    (refusal,) = plan(orders).refusals
    assert "StarRocks keeps" in refusal.reason
    assert not plan_with([TableRules(tables="t", rename={"__OP": "op"})], orders).refusals


def test_names_that_differ_in_case_are_refused() -> None:
    target = (*KNOWN[:2], column("Region", "varchar(8)"))
    assert "the source names region, and the table has Region" in refused(source(ORDERS), target=target)


def test_a_column_that_must_have_a_value_and_has_no_source_is_refused() -> None:
    assert "loaded must have a value" in refused(
        source(ORDERS), target=(*KNOWN, column("loaded", "date", nullable=False))
    )
    assert statements(source(ORDERS), target=(*KNOWN, column("loaded", "date"))) == []


# --- types ---

SCALARS = st.sampled_from(
    ["BOOLEAN", "TINYINT", "INT", "BIGINT", "LARGEINT", "FLOAT", "DOUBLE", "DATE", "DATETIME", "JSON"]
)
SIZED = st.builds(lambda size: f"VARCHAR({size})", st.integers(1, 99)) | st.integers(1, 38).flatmap(
    lambda precision: st.builds(lambda scale: f"DECIMAL({precision},{scale})", st.integers(0, precision))
)
KINDS = SCALARS | SIZED | SCALARS.map(lambda kind: f"ARRAY<{kind}>")


@given(KINDS, KINDS, KINDS)
def test_holding_is_an_order(first: str, second: str, third: str) -> None:
    kinds = parse_type(first), parse_type(second), parse_type(third)
    assert holds(kinds[0], kinds[0])
    between = "VARCHAR" not in second and "JSON" not in second
    between &= "BOOLEAN" not in third  # a whole number takes it, another number does not
    if between and holds(kinds[0], kinds[1]) and holds(kinds[1], kinds[2]):
        assert holds(kinds[0], kinds[2])
    assert wider_type([first, second]) in (None, first, second)


@given(KINDS, KINDS)
def test_after_its_changes_a_table_needs_none(is_: str, type_name: str) -> None:
    """Whatever a plan does, the same plan over the changed table is empty."""
    fields = {"id": field("int64"), "v": field("string")}
    target = (column("id", "bigint(20)", key=True), column("v", is_))
    planned = plan(source(fields), target=target, types={"v": type_name})
    for planned_change in planned.changes:
        changed = planned_change.sql.partition("MODIFY COLUMN `v` ")[2].removesuffix(" NULL")
        after = (target[0], column("v", changed))
        assert plan(source(fields), target=after, types={"v": type_name}).changes == []
        assert holds(parse_type(changed), parse_type(is_))


# --- rules for columns ---


def ruled(sources: dict[str, Sequence[SourceTable]], *rules: TableRules, **declared: TableOptions) -> SourcePlan:
    return plan_sources("shop", sources, {}, {}, declared, lambda _: PLAIN, RuleSet(rules))


def test_a_new_table_follows_the_rules_for_its_columns() -> None:
    rules = TableRules(tables="t", drop=["region"], rename={"id": "number"}, mask={"price": "null"}, metadata=["_op"])
    planned = ruled({"t": [source(ORDERS)]}, rules)
    assert not planned.refusals
    assert [change.sql for change in planned.changes] == [
        "CREATE TABLE IF NOT EXISTS `shop`.`t` (`number` BIGINT NOT NULL, `price` DECIMAL(10,2) NULL, "
        "`_op` VARCHAR(16) NULL) PRIMARY KEY (`number`) DISTRIBUTED BY HASH (`number`)"
    ]


def test_a_hashed_key_is_a_text_and_many_tables_are_told_apart() -> None:
    rules = TableRules(tables="t", mask={"id": "sha256"}, salt="s", metadata=["_source_table"])
    planned = ruled({"t": [source({"id": ORDERS["id"]}, name=name) for name in ("orders_1", "orders_2")]}, rules)
    assert [change.sql for change in planned.changes] == [
        "CREATE TABLE IF NOT EXISTS `shop`.`t` (`_source_table` VARCHAR(255) NOT NULL, `id` VARCHAR(64) NOT NULL) "
        "PRIMARY KEY (`_source_table`, `id`) DISTRIBUTED BY HASH (`_source_table`, `id`)"
    ]


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (TableRules(tables="t", drop=["id"]), "id is a key column of table t, and a rule takes it away"),
        (TableRules(tables="t", mask={"id": "truncate:2"}), "its mask truncate gives different rows the same key"),
        (TableRules(tables=".*", mask={"pirce": "null"}), "a rule names the column pirce, which t does not have"),
        (TableRules(tables=".*", mask={"pirce": "null"}), "Did you mean price?"),
        (TableRules(tables=".*", rename={"price": "region"}), "Two columns of t would have the name region"),
    ],
)
def test_rules_that_cannot_work_are_refused_by_name(rules: TableRules, message: str) -> None:
    refusals = ruled({"t": [source(ORDERS)]}, rules).refusals
    assert message in " ".join(map(str, refusals))


def test_a_rule_waits_for_its_column_before_it_comes_and_after_it_has_gone() -> None:
    """Refusing it would only leave the way to take it out, and messages that wait have the column in clear."""
    rules = TableRules(tables="t", mask={"email": "sha256"}, salt="s")
    planned = ruled({"t": [source(ORDERS)]}, rules)
    assert not planned.refusals
    assert any("a rule names the column email" in note for note in planned.notes["t"])
    there = {"t": [column("id", "BIGINT", key=True), column("email", "VARCHAR(64)")]}
    planned = plan_sources(
        "shop", {"t": [source(ORDERS)]}, there, {"t": "PRIMARY_KEYS"}, {}, lambda _: PLAIN, RuleSet((rules,))
    )
    assert not planned.refusals
    assert not any("email" in note for note in planned.notes["t"])


def test_a_pattern_may_name_a_column_that_only_some_tables_have() -> None:
    rules = TableRules(tables=".*", mask={"price": "null"})
    planned = ruled({"t": [source(ORDERS)], "u": [source({"id": ORDERS["id"]})]}, rules)
    assert not planned.refusals


def test_a_history_keeps_each_change_and_a_mark_has_its_column() -> None:
    rules = TableRules(tables="t", history="{0}_log", deletes="mark", drop=["region"])
    planned = ruled({"t": [source(ORDERS)]}, rules)
    assert not planned.refusals
    assert [change.sql.partition(" (")[2] for change in planned.changes] == [
        "`id` BIGINT NOT NULL, `price` DECIMAL(10,2) NULL, `_deleted` BOOLEAN NULL) PRIMARY KEY (`id`) "
        "DISTRIBUTED BY HASH (`id`)",
        "`_source_partition` VARCHAR(255) NOT NULL, `_position` BIGINT NOT NULL, `_seq` BIGINT NOT NULL, "
        "`_txn_id` VARCHAR(255) NULL, `_commit_time` DATETIME NULL, `_op` VARCHAR(16) NULL, "
        "`price` DECIMAL(10,2) NULL, `id` BIGINT NULL, `_unchanged` JSON NULL) "
        "DUPLICATE KEY (`_source_partition`, `_position`, `_seq`) "
        "DISTRIBUTED BY HASH (`id`)",
    ]
    assert [change.table for change in planned.changes] == ["t", "t_log"]


def test_a_history_alone_needs_no_key_and_no_table() -> None:
    """Of several sources with different keys, too, and of columns that no key may have."""
    rules = TableRules(tables="t", history="{0}_log", only_history=True)
    keyless = {"id": field("double"), "price": ORDERS["price"]}
    planned = ruled({"t": [source(keyless, ()), source(ORDERS, ("id",))]}, rules)
    assert [refusal.reason for refusal in planned.refusals] == [
        "id is DOUBLE in one of its sources and BIGINT in another"
    ]
    planned = ruled({"t": [source(keyless, ()), source(keyless, ("id",))]}, rules)
    assert not planned.refusals
    (change,) = planned.changes
    assert change.table == "t_log"
    assert "`id` DOUBLE NULL, `price` DECIMAL(10,2) NULL, `_unchanged` JSON NULL) DUPLICATE KEY" in change.sql
    assert change.sql.endswith("DISTRIBUTED BY HASH (`_source_partition`, `_position`, `_seq`)")


def test_a_history_alone_may_lack_the_source_s_key() -> None:
    rules = TableRules(tables="t", history="{0}_log", only_history=True, drop=["id"], mask={"region": "null"})
    planned = ruled({"t": [source(ORDERS, ("id", "region"))]}, rules)
    assert not planned.refusals
    assert "`id`" not in planned.changes[0].sql


def test_a_history_takes_the_declared_types_of_its_table_and_its_own() -> None:
    """Also one that is there with other types, which the declaration leaves as they are."""
    rules = TableRules(tables="t", history="{0}_log")
    declared = {"t": TableOptions(types={"price": "VARCHAR(9)"}), "t_log": TableOptions(types={"region": "VARCHAR(5)"})}
    planned = ruled({"t": [source(ORDERS)]}, rules, **declared)
    of_history = planned.changes[1].sql
    assert "`price` VARCHAR(9) NULL" in of_history
    assert "`region` VARCHAR(5) NULL" in of_history
    assert "`region` VARCHAR(5)" not in planned.changes[0].sql
    there = [
        column("_source_partition", "VARCHAR(99)", fixed=True),
        column("id", "INT", fixed=True),
        *(column(name, kind) for name, kind in (("price", "INT"), ("region", "BIGINT"))),
    ]
    tables = {"t": [column("id", "BIGINT", key=True), column("price", "INT")], "t_log": there}
    models = {"t": "PRIMARY_KEYS"}
    planned = plan_sources(
        "shop", {"t": [source(ORDERS)]}, tables, models, declared, lambda _: PLAIN, RuleSet((rules,))
    )
    (refusal,) = planned.refusals
    assert str(refusal).startswith(
        "Table t_log: id is INT in the table, which does not hold all values of BIGINT. Create"
    )
    declared["t_log"] = TableOptions(types={"region": "VARCHAR(5)", "id": "INT"})
    planned = plan_sources(
        "shop", {"t": [source(ORDERS)]}, tables, models, declared, lambda _: PLAIN, RuleSet((rules,))
    )
    assert not planned.refusals
    assert not any("MODIFY" in change.sql for change in planned.changes if change.table == "t_log")


def test_a_history_of_two_tables_is_refused_and_one_that_lacks_a_column_gets_it() -> None:
    rules = TableRules(tables=".*", history="log")
    refusals = ruled({"t": [source(ORDERS)], "u": [source(ORDERS)]}, rules).refusals
    assert "its history log is a table of the plan" in str(refusals[0])
    refusals = ruled({"t": [source(ORDERS)], "log": [source(ORDERS)]}, TableRules(tables="t", history="log")).refusals
    assert "its history log is a table of the plan" in str(refusals[0])
    tables = {"t": [column("id", "BIGINT", key=True)], "log": [column("_position", "BIGINT"), column("id", "BIGINT")]}
    planned = plan_sources(
        "shop",
        {"t": [source({"id": ORDERS["id"]})]},
        tables,
        {"t": "PRIMARY_KEYS"},
        {},
        lambda _: PLAIN,
        RuleSet((rules,)),
    )
    assert [change.sql for change in planned.changes] == [
        "ALTER TABLE `shop`.`log` ADD COLUMN `_source_partition` VARCHAR(255) NULL, ADD COLUMN `_seq` BIGINT NULL, "
        "ADD COLUMN `_txn_id` VARCHAR(255) NULL, ADD COLUMN `_commit_time` DATETIME NULL, "
        "ADD COLUMN `_op` VARCHAR(16) NULL, ADD COLUMN `_unchanged` JSON NULL"
    ]
