"""TableRules: what is refused, and what all rules of one table are together."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from starrocks_txn_sink import DebeziumAssembly, TableOptions, TableRules, TransactionAssembly
from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.options.table_rules import Mask, MaskKind, RuleSet, rules_of


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tables": "("}, "no regular expression"),
        ({"tables": "t", "drop": "a"}, "drop is 'a'"),
        ({"tables": "t", "metadata": ["_txn"]}, "metadata has '_txn'"),
        ({"tables": "t", "drop": ["a"], "mask": {"a": "null"}}, "a is dropped, and also renamed or masked"),
        ({"tables": "t", "rename": {"a": "c", "b": "c"}}, "Two columns of t would have the name c"),
        ({"tables": "t", "rename": {"a": "_op"}, "metadata": ["_op"]}, "Two columns of t would have the name _op"),
        ({"tables": "t", "rename": {"a": ""}}, "rename has a name"),
        ({"tables": "t", "mask": {"a": "sha256"}}, "The mask of a has no salt"),
        ({"tables": "t", "mask": {"a": "sha512"}, "salt": "s"}, "The mask of a is 'sha512'"),
        ({"tables": "t", "mask": {"a": "truncate:0"}}, "The mask of a is 'truncate:0'"),
        ({"tables": "t", "mask": {"a": "constant"}}, "The mask of a is 'constant'"),
        ({"tables": "t", "deletes": "keep"}, "deletes is 'keep'"),
        ({"tables": "t", "history": "{1}_log"}, "The template {1}_log has {1}, and its expression 0 groups"),
        ({"tables": "t", "deletes": "mark", "rename": {"a": "_deleted"}}, "the name _deleted"),
        ({"tables": "t", "only_history": True}, "only_history needs a history"),
        ({"tables": "t", "only_history": True, "history": "l", "deletes": "mark"}, 'deletes="mark" needs a table'),
        ({"tables": "t", "masks": {}}, "TableRules has no argument 'masks'"),
    ],
)
def test_rules_that_cannot_work_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as refused:
        TableRules(**settings)
    assert message in refused.value.message
    assert refused.value.advice


def test_all_rules_of_a_table_add_up_and_drop_wins() -> None:
    rules = [
        TableRules(tables=".*", metadata=["_op", "_txn_id"], mask={"email": "null", "note": "truncate:3"}),
        TableRules(tables="orders|items", metadata=["_op"], drop=["note"], rename={"a": "b"}),
    ]
    together = rules_of(rules, "orders")
    assert together is not None
    assert (set(together.drop), dict(together.rename)) == ({"note"}, {"a": "b"})
    assert (together.masks, together.metadata) == ({"email": Mask(MaskKind.NULL)}, ("_op", "_txn_id"))
    rules_of_order = rules_of(rules, "order")  # a pattern is for whole names
    assert rules_of_order is not None
    assert set(rules_of_order.masks) == {"email", "note"}
    assert rules_of(rules[1:], "order") is None


def test_a_table_with_a_history_alone_has_no_marks_by_another_rule() -> None:
    rules = [TableRules(tables="t", history="log", only_history=True), TableRules(tables=".*", deletes="mark")]
    with pytest.raises(OptionError, match="Table t has only a history, and by another rule"):
        rules_of(rules, "t")
    together = rules_of(rules[:1], "t")
    assert together is not None
    assert together.written == "log"


def test_rules_that_contradict_each_other_name_the_table_and_the_column() -> None:
    rules = [TableRules(tables=".*", rename={"a": "b"}), TableRules(tables="orders", rename={"a": "c"})]
    with pytest.raises(OptionError, match="Two rules for table orders treat a differently"):
        rules_of(rules, "orders")
    masks = [TableRules(tables=".*", mask={"a": "null"}), TableRules(tables="orders", mask={"a": "constant:x"})]
    with pytest.raises(OptionError, match="Two rules for table orders treat a differently"):
        rules_of(masks, "orders")


def test_a_table_has_one_history_and_one_way_with_deletes() -> None:
    rules = [
        TableRules(tables="(.*)_new", history="{1}_log"),
        TableRules(tables="a.*", deletes="mark"),
        TableRules(tables="b.*", deletes="ignore"),
        TableRules(tables="b_new", history="log", deletes="mark"),
    ]
    rule_set = RuleSet(rules)
    of_table = rule_set.of("a_new")
    assert of_table is not None
    assert (of_table.history, of_table.deletes, of_table.own) == ("a_log", "mark", ("_deleted",))
    assert (rule_set.main_of("a_log"), rule_set.main_of("a_new"), rule_set.main_of("x")) == ("a_new", "a_new", "x")
    options = {"a_new": TableOptions(types={"x": "INT", "y": "INT"}), "a_log": TableOptions(types={"y": "BIGINT"})}
    assert rule_set.declared("a_log", options.__getitem__).types == {"x": "INT", "y": "BIGINT"}
    assert rule_set.declared("a_new", options.__getitem__) is options["a_new"]
    with pytest.raises(OptionError, match="Two rules give table b_new different histories"):
        rule_set.of("b_new")
    with pytest.raises(OptionError, match="Two rules give table b different deletes"):
        rules_of([*rules, TableRules(tables="b", deletes="mark")], "b")
    with pytest.raises(OptionError, match="The history of table t is the table itself"):
        rules_of([TableRules(tables="t", history="{0}")], "t")


@pytest.mark.parametrize(
    ("settings", "key", "message"),
    [
        ({"drop": ["id"]}, ["id"], "id is a key column of table t, and a rule takes it away"),
        ({"rename": {"id": "number"}}, ["id"], "id is a key column of table t, and a rule takes it away"),
        ({"mask": {"id": "truncate:3"}}, ["id"], "its mask truncate gives different rows the same key"),
        ({"mask": {"id": "constant:x"}, "rename": {"id": "n"}}, ["n"], "its mask constant gives"),
    ],
)
def test_a_rule_never_takes_a_key_away(settings: dict[str, Any], key: list[str], message: str) -> None:
    rules = rules_of([TableRules(tables="t", **settings)], "t")
    assert rules is not None
    with pytest.raises(OptionError) as refused:
        rules.check_key(key)
    assert message in refused.value.message
    alone = rules_of([TableRules(tables="t", history="log", only_history=True, **settings)], "t")
    assert alone is not None
    alone.check_key(key)  # of a table that is there, and gets no rows


def test_a_key_may_be_renamed_hashed_and_a_column_about_the_source() -> None:
    settings: dict[str, Any] = {
        "rename": {"id": "n"},
        "mask": {"id": "sha256"},
        "salt": "s",
        "metadata": ["_source_table"],
    }
    rules = rules_of([TableRules(tables="t", **settings)], "t")
    assert rules is not None
    rules.check_key(["_source_table", "n"])


def test_the_salt_is_never_shown_and_travels() -> None:
    rules = TableRules(tables="t", mask={"a": "sha256"}, salt="quite-secret")
    assert "quite-secret" not in repr((rules, rules.masks, rules_of([rules], "t"), RuleSet([rules])))
    assert pickle.loads(pickle.dumps(rules)).masks["a"].text == "quite-secret"


def test_dead_letters_of_unknown_tables_would_have_what_rules_hide() -> None:
    settings: dict[str, Any] = {"on_unknown_table": "dead_letter", "dead_letter_table": "dead"}
    with pytest.raises(OptionError, match="rows of unknown tables become dead letters as they are"):
        DebeziumAssembly(rules=[TableRules(tables="t", mask={"a": "null"})], **settings)
    rules = DebeziumAssembly(rules=[TableRules(tables=".*", metadata=["_op"])], **settings).rule_set
    assert rules.of("dead") is None
    assert rules.of("_starrocks_txn_sink_ledger") is None
    assert rules.of("t") is not None


def test_txn_events_name_no_table_of_the_source() -> None:
    with pytest.raises(OptionError, match="name no table of the source"):
        TransactionAssembly(rules=[TableRules(tables="t", metadata=["_source_table"])])
    with pytest.raises(OptionError, match="no list of TableRules"):
        TransactionAssembly(rules=TableRules(tables="t"))  # type: ignore[arg-type]


def test_columns_that_no_table_has_are_named_with_a_similar_name() -> None:
    rules = RuleSet([TableRules(tables="o.*", mask={"emial": "null"}, drop=["gone"], rename={"a": "b"})])
    unmatched = [*rules.unmatched({"orders": ["email", "a"], "items": ["emial"]}, at_source=True)]
    assert [(column.column, column.near, column.tables) for column in unmatched] == [
        ("emial", "email", ["orders"]),
        ("gone", None, ["orders"]),
    ]
    assert [column.column for column in rules.unmatched({"orders": ["Emial", "b"]}, at_source=False)] == ["emial"]
    assert [*rules.unmatched({"orders": ["emial", "b"], "items": []}, at_source=False)] == []
    assert [*rules.unmatched({"items": []}, at_source=True)] == []


def test_a_column_that_another_rule_names_is_no_mistake() -> None:
    rules = RuleSet([TableRules(tables="t", mask={"email": "null", "emails": "null"}, rename={"a": "emial"})])
    assert [rule.near for rule in rules.unmatched({"t": ["emails", "emial", "a"]}, at_source=True)] == [None]


def test_rules_for_no_table_are_named_with_a_similar_name_that_no_rule_has() -> None:
    rules = RuleSet(
        [
            TableRules(tables=".*", metadata=["_op"]),
            TableRules(tables="custmers", mask={"email": "null"}),
            TableRules(tables="orders_20.*", drop=["note"]),
            TableRules(tables="Orders", drop=["note"]),
            TableRules(tables="(item)", drop=["note"]),
        ]
    )
    tables = ["customers", "orders", "items", "_starrocks_txn_sink_ledger"]
    assert [(rule.tables, rule.near) for rule in rules.tableless(tables)] == [
        ("custmers", "customers"),
        ("orders_20.*", None),
        ("Orders", "orders"),
        ("(item)", None),
    ]
    assert [rule.tables for rule in rules.tableless([*tables, "custmers", "orders_2024", "Orders", "item"])] == []
    own = [rule.tables for rule in RuleSet([TableRules(tables=".*", metadata=["_op"])]).tableless(tables[3:])]
    assert own == [".*"]


def test_a_history_is_found_while_another_thread_asks_for_a_table() -> None:
    rules = RuleSet((TableRules(tables=".*", history="{0}_log"),))

    class Asking(str):
        """A name whose comparison is the moment at which another thread asks."""

        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, key: object) -> bool:
            rules.of(f"other {key}")
            return str.__eq__(self, key)

    for table in ("a", "b"):
        rules.of(table)
    assert rules.main_of(Asking("b_log")) == "b"
