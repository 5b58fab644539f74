"""The driver judges a new key of a source's table: it refuses one by which rows would be lost, and no other one."""

from __future__ import annotations

from functools import partial

import orjson
import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink import SinkOptions, TableOptions, TableRules
from starrocks_txn_sink.errors import InputError, SourceKeyChanged
from starrocks_txn_sink.options.table_rules import NO_RULES, RuleSet
from starrocks_txn_sink.protocol.source_keys import ReadKeys
from starrocks_txn_sink.rows.target import TargetColumn, parse_type
from starrocks_txn_sink.sink.source_progress import SourceKeys, judge_key, judge_sources
from starrocks_txn_sink.sink.typed.tables import Tables
from tests.support.depth import examples

Names = tuple[str, ...]


def column(name: str, *, key: bool = True) -> TargetColumn:
    return TargetColumn(name, parse_type("INT"), nullable=False, key=key)


def keys_for(*own: str, rules: RuleSet = NO_RULES, declared: bool = False, model: str = "PRIMARY_KEYS") -> SourceKeys:
    """For a table t with the key `own`, and a value column that is NOT NULL."""
    options = SinkOptions(
        load_url="fe",
        database="shop",
        delivery="at-least-once",
        tables={"t": TableOptions(keys=own)} if declared else {},
    )
    tables = Tables({"t": model}, required={"t": (*map(column, own), column("value", key=False))})
    return SourceKeys(
        "job",
        judge=lambda key: judge_key(options, rules, tables, key),
        table_of=lambda name: name.rpartition(".")[2],
        judge_sources=partial(judge_sources, options, rules, tables),
    )


def take(keys: SourceKeys, *names: Names, collection: str = "public.t") -> None:
    keys.take(("shop", collection, "t", of) for of in names)


@pytest.mark.parametrize(
    ("own", "names", "reason"),
    [
        (("id",), ("id",), ""),
        (("a", "b"), ("b", "a"), ""),
        (("id",), ("code",), "has id, which the source's key (code) does not determine"),
        (("id",), (), "which the source's key (no key) does not determine"),
        (("id",), ("id", "n"), "lacks n of the source's key"),
        (("a", "b"), ("a",), "has b, which"),
    ],
)
def test_a_key_is_judged_as_at_the_start(own: Names, names: Names, reason: str) -> None:
    keys = keys_for(*own)
    take(keys, own)
    if not reason:
        take(keys, names)
        return
    for _ in range(2):
        with pytest.raises(SourceKeyChanged) as refused:
            take(keys, names)
    assert reason in refused.value.message
    assert f"public.t came under the key {'(' + ', '.join(names) + ')' if names else 'none'}, and before" in str(
        refused.value
    )
    assert "snapshot the table again" in refused.value.advice
    take(keys, own)


@pytest.mark.parametrize("kind", ["declared", "duplicate key", "unknown table"])
def test_nothing_is_refused_where_the_user_or_the_table_decides(kind: str) -> None:
    model = {"duplicate key": "DUP_KEYS", "unknown table": ""}.get(kind, "PRIMARY_KEYS")
    keys = keys_for("id", declared=kind == "declared", model=model)
    for names in (("id",), ("code",), ()):
        take(keys, names)


@pytest.mark.parametrize("known", [False, True])
def test_the_first_key_is_judged_as_every_later_one(known: bool) -> None:
    """Also one that an earlier release has taken."""
    keys = keys_for("id")
    if known:
        keys.known = {("shop", "public.t"): {("customer",)}}
    with pytest.raises(SourceKeyChanged, match=r"under the key \(customer\)\. Table t: its key \(id\) has id"):
        take(keys, ("customer",))
    take(keys, ("id",))
    assert keys.unwritten == [("shop", "public.t", "t", ("id",))]


def test_messages_without_a_key_say_nothing_where_the_first_had_none() -> None:
    """A transform may have taken it away; the plan of sync judges the key that the table has."""
    keys = keys_for("id")
    take(keys, ())
    take(keys, ())
    with pytest.raises(SourceKeyChanged):
        take(keys, ("customer",))
    take(keys, ("id",))
    take(keys, ())


def test_two_keys_that_come_at_once_are_told_apart() -> None:
    with pytest.raises(SourceKeyChanged, match=r"under the key \(code\), and before under \(id\)"):
        take(keys_for("id"), ("code",), ("id",))


def test_names_follow_the_rules_and_merged_tables_are_told_apart_by_their_column() -> None:
    rules = RuleSet((TableRules(tables="t", rename={"id": "number"}, metadata=["_source_table"]),))
    keys = keys_for("_source_table", "number", rules=rules)
    take(keys, ("id",), collection="one.t")
    take(keys, ("id",), collection="two.t")
    with pytest.raises(SourceKeyChanged, match=r"table two\.t came"):
        take(keys, ("code",), collection="two.t")
    dropping = RuleSet((TableRules(tables="t", drop=["code"]),))
    with pytest.raises(SourceKeyChanged, match="a rule takes it away"):
        take(keys_for("code", rules=dropping), ("code",))


def test_a_further_source_of_a_table_is_refused_if_its_rows_would_replace_others() -> None:
    """At once, later, and after a restart; not where the user has declared the key."""
    for later in (False, True):
        keys = keys_for("id")
        for connector, name in (("shop", "two.t"), ("other", "one.t")):
            if later:
                keys.known = {("shop", "one.t"): {("id",)}, ("shop", "one.u"): {("id",)}}
            else:
                take(keys, ("id",), collection="one.t")
            with pytest.raises(InputError, match="those of one key would replace one another") as refused:
                keys.take([(connector, name, "t", ("id",))])
            assert ("_source_table" if connector == "shop" else "_source_partition") in refused.value.advice
    keys = keys_for("id", declared=True)
    take(keys, ("id",), collection="one.t")
    take(keys, ("id",), collection="two.t")


@given(st.lists(st.lists(st.sampled_from([("id",), ("id", "n"), ("n", "id"), ("größe",)]), max_size=3), max_size=6))
@examples(60)
def test_the_ledger_has_the_keys_that_were_taken(batches: list[list[Names]]) -> None:
    """A driver that starts again knows what the one before has taken."""
    keys, ledger = keys_for(model="DUP_KEYS"), dict[str, str]()
    for names in batches:
        take(keys, *names)
        rows = [orjson.loads(bytes(row)[1:]) for row in keys.rows(lambda: "now")]
        keys.commit()
        assert not ledger.keys() & {row["name"] for row in rows}
        ledger |= {row["name"]: row["kind"] for row in rows}
    known = ReadKeys("job").result([(name,) for name in ledger])
    assert known == keys.known
    assert set(ledger.values()) <= {"key"}


def test_a_key_that_the_ledger_cannot_hold_is_taken_and_not_written() -> None:
    keys = keys_for("x" * 1100)
    take(keys, ("x" * 1100,))
    assert keys.rows(lambda: "now") == []
