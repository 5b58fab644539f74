"""What `verify` compares with what: routes, rules and columns; and which texts are one value."""

from __future__ import annotations

import hashlib

import pytest

from starrocks_txn_ops.sync.catalog import DescribedTable
from starrocks_txn_ops.verify.mapping import Comparison, Mapped, Unmatched, comparisons, connector_of, mapped, named
from starrocks_txn_ops.verify.rules import sameness
from starrocks_txn_ops.verify.rules.core import KeyRange
from starrocks_txn_ops.verify.rules.pairs import MYSQL, POSTGRESQL, NotComparable, pair_of
from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.options.table_rules import RuleSet, TableRules
from starrocks_txn_sink.rows.target import TargetColumn, parse_type

TOPICS = r"shop\.(public\..*|transaction)"
ORDERS = DescribedTable(
    "public.orders", ("id",), (("id", "bigint"), ("email", "text"), ("price", "numeric(10,2)"), ("note", "text"))
)


def columns(**types: str) -> list[TargetColumn]:
    return [TargetColumn(name, parse_type(kind), key=name == "id") for name, kind in types.items()]


def compared(
    rules: list[TableRules], of: list[TargetColumn], *sources: DescribedTable, keys: tuple[str, ...] = ()
) -> list[Comparison]:
    return comparisons(Mapped("orders", sources or (ORDERS,)), RuleSet(rules), of, "shop", POSTGRESQL, keys)


PLAIN = {"id": "bigint(20)", "email": "varchar(100)", "price": "decimal(10,2)", "note": "varchar(100)"}


def test_routes_and_topics_choose_the_tables() -> None:
    other = DescribedTable("sales.items", ("id",), ())
    excluded = DescribedTable("public.secret", ("id",), ())
    own = DescribedTable("public._starrocks_txn_sink_ledger", ("id",), ())
    routes = ((r"public\.secret", ""), (r"(?:[^.]+\.)?([^.]+)", "{1}"))
    tables, left_out = mapped([ORDERS, other, excluded, own], routes, TOPICS)
    assert [(table.name, table.title) for table in tables] == [("orders", "public.orders -> orders")]
    assert left_out == {
        "sales.items": "its topic is none of `topics`",
        "public.secret": "no route has it",
        "public._starrocks_txn_sink_ledger": "it would be a table of the sink's own",
    }
    assert connector_of(TOPICS) == "shop"
    assert connector_of(r"my\-shop\.v1\..*") == "my-shop"
    assert connector_of(".*orders") == ""


def test_rules_rename_drop_and_mark() -> None:
    rules = [TableRules(tables="orders", drop=["note"], rename={"email": "mail"}, deletes="mark")]
    of = columns(**{**PLAIN, "mail": "varchar(100)", "_deleted": "boolean", "old": "int"})
    (found,) = compared(rules, of)
    assert [pair.name for pair in found.source.values] == ["mail", "price"]
    assert found.source.branches[0].table == '"public"."orders"'
    assert "coalesce(`_deleted`, FALSE) = FALSE" in found.target.count()[0]
    assert found.notes == ("email: the source has no such column", "note: the source has no such column",
                           "old: the source has no such column")  # fmt: skip
    assert not found.lacks


def test_a_column_that_the_table_lacks_is_a_difference() -> None:
    (found,) = compared([], columns(id="bigint(20)", email="varchar(100)", price="decimal(10,2)"))
    assert found.lacks == ("note",)


def test_a_table_that_has_lost_its_marks_is_different() -> None:
    """Which of its rows the source has deleted is not known, so all of them are compared."""
    (found,) = compared([TableRules(tables="orders", deletes="mark")], columns(**PLAIN))
    assert found.lacks == ("_deleted",)
    assert "_deleted" not in found.target.count()[0]


def test_a_column_that_the_source_computes_may_lack() -> None:
    computed = DescribedTable("public.orders", ("id",), ORDERS.columns, generated=frozenset({"note"}))
    (found,) = compared([], columns(id="bigint(20)", email="varchar(100)", price="decimal(10,2)"), computed)
    assert not found.lacks
    assert "note: not compared" in found.notes[0]


@pytest.mark.parametrize(
    ("kind", "instant"), [("timestamp with time zone", True), ("timestamp without time zone", False)]
)
def test_instants_are_not_compared_in_another_zone(kind: str, instant: bool) -> None:
    table = DescribedTable("public.orders", ("id",), (("id", "bigint"), ("at", kind)))
    of = columns(id="bigint(20)", at="datetime")
    (found,) = comparisons(Mapped("orders", (table,)), RuleSet([]), of, "shop", POSTGRESQL, in_utc=False)
    assert bool(found.notes) is instant
    assert len(found.source.values) == (not instant)


def test_masks_compare_what_the_rule_makes() -> None:
    mask = {"email": "sha256", "note": "truncate:4", "price": "null"}
    rules = [TableRules(tables="orders", mask=mask, salt="pepper")]
    (found,) = compared(rules, columns(**PLAIN))
    email, price, note = found.source.values
    assert "pepper" not in str(found.source.sums(KeyRange(), 1))
    assert email.agree("a@b", hashlib.sha256(b"peppera@b").hexdigest())
    assert not email.agree("a@b", hashlib.sha256(b"a@b").hexdigest())
    assert found.judge.each, "a value that no statement hashes is compared in the client"
    assert price.source == 'CASE WHEN "price" IS NOT NULL THEN NULL END'
    assert note.source.startswith("LEFT(")


def test_a_masked_key_is_refused() -> None:
    rules = [TableRules(tables="orders", mask={"id": "sha256"}, salt="pepper")]
    with pytest.raises(Unmatched, match="its key has id, which a mask changes"):
        compared(rules, columns(**PLAIN))


def test_sources_of_one_table_are_told_apart_by_their_name() -> None:
    others = DescribedTable("public.it's", ORDERS.keys, ORDERS.columns)
    rules = [TableRules(tables="orders", metadata=["_source_table"])]
    first, second = compared(rules, columns(**PLAIN, _source_table="varchar(255)"), ORDERS, others)
    assert (first.collections, second.collections) == (("public.orders",), ("public.it's",))
    assert r"`_source_table` = 'public.it\'s'" in second.target.count()[0]
    assert second.part


def test_sources_that_share_no_key_are_one_table() -> None:
    others = DescribedTable("public.orders_2", ORDERS.keys, ORDERS.columns)
    (found,) = compared([], columns(**PLAIN), ORDERS, others, keys=("id",))
    assert found.source.count()[0].count("UNION ALL") == 1
    wider = DescribedTable("public.orders_3", ORDERS.keys, (("id", "bigint"), ("email", "jsonb"), *ORDERS.columns[2:]))
    with pytest.raises(Unmatched, match="different types"):
        compared([], columns(**PLAIN), ORDERS, wider, keys=("id",))


def test_tables_without_a_key_or_with_a_history_alone_are_refused() -> None:
    with pytest.raises(Unmatched, match="no key"):
        compared([], columns(**PLAIN), DescribedTable("public.orders", (), ORDERS.columns))
    rules = [TableRules(tables="orders", history="{0}_log", only_history=True)]
    with pytest.raises(Unmatched, match="history alone"):
        compared(rules, columns(**PLAIN))
    (found,) = compared([], columns(**PLAIN), DescribedTable("public.orders", (), ORDERS.columns), keys=("email",))
    assert [pair.name for pair in found.source.keys] == ["email"]
    assert not found.walks


def test_names_are_quoted_and_percent_signs_stay() -> None:
    pair = pair_of(POSTGRESQL, 'a"%s', "bigint", "a%s", parse_type("bigint"))
    assert '"a""%%s"' in pair.source
    assert pair.target == "CAST(`a%s` AS VARCHAR)"
    assert "`a``%%s`" in pair_of(MYSQL, "a`%s", "bigint(20)", "a", parse_type("bigint")).source


@pytest.mark.parametrize(("source_type", "target"), [("bigint", "bitmap"), ("date", "hll"), ("text", "percentile")])
def test_sets_are_not_comparable(source_type: str, target: str) -> None:
    with pytest.raises(NotComparable):
        pair_of(POSTGRESQL, "c", source_type, "c", parse_type(target))


@pytest.mark.parametrize(
    ("same", "source", "target", "expected"),
    [
        (sameness.as_numbers, "1.50", "1.5", True),
        (sameness.as_numbers, "1.50", "1.51", False),
        (sameness.as_numbers, "1E+3", "1000", True),
        (sameness.as_doubles, "1e+300", "1E300", True),
        (sameness.as_doubles, "0.1", "0.10000000000000002", False),
        (sameness.as_floats, "0.10000000149011612", "0.1", True),
        (sameness.as_floats, "0.1", "0.2", False),
        (sameness.as_moments, "2024-02-29 12:34:56.1", "2024-02-29T12:34:56.100000Z", True),
        (sameness.as_moments, "2024-02-29", "2024-02-29 00:00:00", True),
        (sameness.as_moments, "2024-02-29 00:00:01", "2024-02-29", False),
        (sameness.as_truth, "t", "1", True),
        (sameness.as_truth, "1", "0", False),
        (sameness.as_bits, "1000000001", "513", True),
        (sameness.as_bits, "1000000001", "512", False),
        (sameness.as_bytes, "AP/+", "AP_-", True),
        (sameness.as_bytes, "AP/+", "00fffe", True),
        (sameness.as_bytes, "AP/+", "00ffff", False),
        (sameness.bytes_of_text, "AP/+", "00FFFE", True),
        (sameness.as_intervals, "P1Y2M3DT4H5M6.789S", "37091106789000", True),
        (sameness.as_intervals, "PT0S", "P0Y0M0DT0H0M0S", True),
        (sameness.as_intervals, "P1M", "P1D", False),
        (sameness.as_points, "(1,2)", '{"x":1.0,"y":2.0,"wkb":"AQ==","srid":null}', True),
        (sameness.as_points, "POINT(1 2)", '{"x":1.0,"y":3.0}', False),
        (sameness.as_documents, '{"price": 0.10, "a": [1, null]}', '{"a": [1, null], "price": 0.1}', True),
        (sameness.as_documents, '{"a": 1}', '{"a": "1"}', False),
        (sameness.as_documents, "[true]", "[1]", False),
        (sameness.as_lists, "[1.50, null]", '["1.5",null]', True),
        (sameness.as_lists, '["\\\\x00ff"]', '["AP8="]', True),
        (sameness.as_lists, "[1, 2]", "[1]", False),
        (sameness.padded, "a  ", "a", True),
    ],
)
def test_one_value_may_have_several_texts(same: sameness.Same, source: str, target: str, expected: bool) -> None:
    assert same(source, target) is expected


def test_null_is_null_but_for_values_that_no_column_holds() -> None:
    pair = pair_of(MYSQL, "day", "date", "day", parse_type("date"))
    assert pair.agree("0000-00-00", None)
    assert not pair.agree("2024-02-29", None)
    assert not pair.agree(None, "2024-02-29")
    assert pair.agree(None, None)
    document = pair_of(POSTGRESQL, "j", "jsonb", "j", parse_type("json"))
    assert document.agree("null", None)


def test_both_parts_of_a_tables_name_may_have_points() -> None:
    """The source's catalog knows where the second one begins."""
    table = DescribedTable("sa.les.orders.2024", ("id",), (("id", "bigint"),), owner="sa.les")
    (its,) = compared([], columns(id="bigint(20)"), table)
    assert [branch.table for branch in its.source.branches] == ['"sa.les"."orders.2024"']


def test_tables_are_named_as_the_source_or_starrocks_does() -> None:
    parts = Mapped("all_parts", (DescribedTable("public.part_1", (), ()), DescribedTable("public.part_2", (), ())))
    tables, left_out = [Mapped("orders", (ORDERS,)), parts], {"sales.items": "its topic is none of `topics`"}
    assert named(["public.part_2"], tables, left_out) == [parts]
    assert named(["all_parts", "public.orders", "orders"], tables, left_out) == tables
    for name, message in (
        ("orders ", "The file writes no table orders , and from none of this name. Did you mean orders?"),
        ("sales.Orders", "Did you mean orders or public.orders?"),
        ("public.part_3", "Did you mean public.part_"),
        ("sales.items", "does not write the source's table sales.items: its topic is none of `topics`"),
        ("zzz", "`topics` and [[routes]] say which there are"),
    ):
        with pytest.raises(InputError) as refused:
            named(["orders", name], tables, left_out)
        assert message in str(refused.value)
