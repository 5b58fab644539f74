"""Whole transactions in the store: upserts, deletes, order, visibility, history."""

from __future__ import annotations

import json
import tempfile
import threading
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from starrocks_emulator.sql.session import QuerySession, SqlError
from starrocks_emulator.sql.statements import run
from starrocks_emulator.tables.plan import PlanRejected
from starrocks_emulator.tables.store import CommitRejected, Store
from tests.support.depth import examples
from tests.support.store_setup import JSON_ARRAY, body, load, rows, with_tables


def order(key: int, customer: int = 1, **more: object) -> dict[str, object]:
    return {"order_id": key, "customer_id": customer, **more}


def test_a_missing_key_is_null_and_only_a_column_left_out_takes_its_default(store: Store) -> None:
    """Wire contract 5.4 and 5.5."""
    load(store, "orders", [order(1), order(2, total_amount=None, order_status=None)])
    load(store, "orders", [order(3)], headers={**JSON_ARRAY, "columns": "order_id,customer_id"})
    assert [(str(a), b) for a, b in rows(store, "SELECT total_amount, order_status FROM orders ORDER BY order_id")] == [
        ("None", None),
        ("None", None),
        ("0.00", ""),
    ]


EXACT = ("123456789012345678.12345678901234567891", "-0.00000000000000000001", "99999999999999999.99999999999999999999")


def test_a_decimal_keeps_every_digit_of_a_json_number_and_of_a_string(store: Store) -> None:
    ddl = "CREATE TABLE test.wide (id INT, d DECIMAL(38,20), t VARCHAR(99), j JSON) DUPLICATE KEY(id)"
    run(store, QuerySession(), f"{ddl} DISTRIBUTED BY HASH(id)")
    text = 'a "1.2345678901234567" \\\\ b, 9.8765432109876543210'
    bodies = [
        f'{{"t":{json.dumps(text)},"id":{number},"d":{number_text},"j":[1.5,{{"d":"x"}}]}}'
        for number, value in enumerate(EXACT)
        for number_text in (value, f'"{value}"')
    ]
    load(store, "wide", "[" + ",".join(bodies) + "]")
    expected = [(number, Decimal(value), text) for number, value in enumerate(EXACT) for _ in range(2)]
    assert rows(store, "SELECT id, d, t FROM wide ORDER BY id") == expected


def test_the_last_row_of_a_key_wins_over_bodies_and_within_one(store: Store) -> None:
    load(store, "orders", [order(1, 1), order(2, 1), order(1, 2)], [order(2, 3), order(2, 4)])
    assert rows(store, "SELECT order_id, customer_id FROM orders ORDER BY 1") == [(1, 2), (2, 4)]


def test_a_duplicate_key_table_keeps_every_row(store: Store) -> None:
    event = {"event_id": 1, "note": "x"}
    load(store, "order_events", [event, event])
    load(store, "order_events", [event])
    assert rows(store, "SELECT count(*) FROM order_events") == [(3,)]


def test_one_refused_table_refuses_the_whole_transaction(store: Store) -> None:
    good, bad = store.plan("test", "orders", JSON_ARRAY), store.plan("test", "order_items", JSON_ARRAY)
    with pytest.raises(CommitRejected) as failure:
        store.commit(
            "test", 5, "l", [(good, [body(store, [order(1)])]), (bad, [body(store, [{"item_id": 1}])])], visible=True
        )
    assert failure.value.table == "order_items"
    assert rows(store, "SELECT count(*) FROM orders") == [(0,)]
    assert store.transactions() == []


def test_counts_bytes_and_history(store: Store) -> None:
    txn_id, counts = load(store, "orders", [order(1)], [order(2)], label="seen")
    assert (counts.loaded, counts.filtered, counts.unselected) == (2, 0, 0)
    assert counts.bytes == 2 * len('[{"order_id": 1, "customer_id": 1}]')
    (record,) = store.transactions()
    assert (record.txn_id, record.label, record.db, record.state) == (txn_id, "seen", "test", "VISIBLE")
    store.forget("seen")
    assert store.transactions() == []


def test_an_invisible_commit_and_those_behind_it_become_visible_in_order(store: Store) -> None:
    first, _ = load(store, "orders", [order(1, 1)], visible=False, label="first")
    second, _ = load(store, "orders", [order(1, 2)], label="second")
    load(store, "order_events", [{"event_id": 1}], label="elsewhere")
    assert rows(store, "SELECT count(*) FROM orders") == [(0,)]
    assert rows(store, "SELECT count(*) FROM order_events") == [(1,)]
    assert {record.label: record.state for record in store.transactions()} == {
        "first": "COMMITTED",
        "second": "COMMITTED",
        "elsewhere": "VISIBLE",
    }
    store.publish(second)
    assert rows(store, "SELECT count(*) FROM orders") == [(0,)]
    store.publish(first)
    assert rows(store, "SELECT customer_id FROM orders") == [(2,)]
    assert {record.state for record in store.transactions()} == {"VISIBLE"}


def test_a_change_by_sql_waits_for_the_invisible_commit_before_it(store: Store) -> None:
    first, _ = load(store, "orders", [order(1, 1)], visible=False)
    finish = threading.Event()

    def insert() -> None:
        run(store, QuerySession(), "INSERT INTO test.orders (order_id, customer_id) VALUES (1, 9)")
        finish.set()

    writer = threading.Thread(target=insert)
    writer.start()
    assert not finish.wait(0.2)
    store.publish(first)
    writer.join(30)
    assert rows(store, "SELECT customer_id FROM orders") == [(9,)]


def test_partial_update_keeps_the_other_columns(store: Store) -> None:
    load(store, "orders", [order(1, 7, total_amount="1.50", order_status="old")])
    partial = {**JSON_ARRAY, "columns": "order_id,order_status", "partial_update": "true"}
    load(store, "orders", [{"order_id": 1, "order_status": "new"}], headers=partial)
    assert [tuple(map(str, row)) for row in rows(store, "SELECT * FROM orders")] == [("1", "7", "1.50", "new")]
    with pytest.raises(CommitRejected, match=r"Column has no default value\. column: customer_id"):
        load(store, "orders", [{"order_id": 2, "order_status": "new"}], headers=partial)


def test_a_merge_condition_lets_only_newer_rows_win(store: Store) -> None:
    load(store, "orders", [order(1, 1, total_amount=5)])
    merge = {**JSON_ARRAY, "merge_condition": "total_amount"}
    load(
        store,
        "orders",
        [order(1, 2, total_amount=4), order(2, 1, total_amount=2), order(2, 2, total_amount=1)],
        headers=merge,
    )
    assert rows(store, "SELECT order_id, customer_id FROM orders ORDER BY 1") == [(1, 1), (2, 1)]
    load(store, "orders", [order(1, 3, total_amount=5)], headers=merge)
    assert rows(store, "SELECT customer_id FROM orders WHERE order_id = 1") == [(3,)]
    with pytest.raises(CommitRejected, match="No rows were imported"):
        load(store, "orders", [order(1, 3, total_amount=1, __op=1)], headers=merge)


def test_a_column_that_was_added_since_the_plan_has_its_default(store: Store) -> None:
    """Wire contract 3.2: the commit does not mind; at once, later, and for some columns alike."""
    plan = store.plan("test", "orders", JSON_ARRAY)
    partial = {**JSON_ARRAY, "columns": "order_id,order_status", "partial_update": "true"}
    partial_plan = store.plan("test", "orders", partial)
    run(store, QuerySession(), "ALTER TABLE test.orders ADD COLUMN more INT DEFAULT '7'")
    run(store, QuerySession(), "ALTER TABLE test.orders ADD COLUMN note VARCHAR(9)")
    store.commit("test", 1, "l", [(plan, [body(store, [order(1)])])])
    store.commit("test", 2, "m", [(plan, [body(store, [order(2)])])], visible=False)
    store.publish(2)
    store.commit("test", 3, "n", [(partial_plan, [body(store, [{"order_id": 1, "order_status": "new"}])])])
    expected = [(1, "new", 7, None), (2, None, 7, None)]
    assert rows(store, "SELECT order_id, order_status, more, note FROM orders ORDER BY 1") == expected


@pytest.mark.parametrize("change", ["DROP COLUMN order_status", "MODIFY COLUMN order_status VARCHAR(99)"])
def test_a_table_altered_otherwise_since_the_plan_is_noticed(store: Store, change: str) -> None:
    plan = store.plan("test", "orders", JSON_ARRAY)
    run(store, QuerySession(), f"ALTER TABLE test.orders {change}")
    with pytest.raises(CommitRejected, match="altered or dropped"):
        store.commit("test", 1, "l", [(plan, [body(store, [order(1)])])])


def test_transaction_ids_grow_over_restarts(tmp_path: Path) -> None:
    store = Store(tmp_path)
    before = [store.next_txn_id() for _ in range(3)]
    store.close()
    store = Store(tmp_path)
    after = store.next_txn_id()
    store.close()
    assert sorted({*before, after}) == [*before, after]


def test_an_unknown_table_is_refused_as_the_frontend_does(store: Store) -> None:
    with pytest.raises(PlanRejected) as failure:
        store.plan("test", "nope", JSON_ARRAY)
    assert failure.value.message == "Failed to find table nope in db test"
    assert failure.value.java_class == "com.starrocks.common.MetaNotFoundException"


def test_concurrent_writers_by_load_and_sql_never_conflict(store: Store) -> None:
    failures: list[BaseException] = []

    def loads(base: int) -> None:
        try:
            for turn in range(10):
                load(store, "orders", [order(key, base + turn) for key in range(20)], label=f"{base}-{turn}")
        except BaseException as error:
            failures.append(error)

    def updates() -> None:
        try:
            for _ in range(10):
                run(store, QuerySession(), "UPDATE test.orders SET order_status = 'u' WHERE order_id < 10")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=loads, args=(base,)) for base in (100, 200)]
    threads.append(threading.Thread(target=updates))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert rows(store, "SELECT count(*), count(DISTINCT order_id) FROM orders") == [(20, 20)]


def test_a_reader_never_sees_half_of_a_commit_over_two_tables(store: Store) -> None:
    """Every transaction keeps sum(total_amount) of the orders equal to the number of items, in one statement."""
    stop = threading.Event()
    torn_reads: list[tuple[object, ...]] = []
    samples = 0

    def read() -> None:
        nonlocal samples
        while not stop.is_set():
            ((total, items),) = rows(
                store, "SELECT (SELECT coalesce(sum(total_amount), 0) FROM orders), (SELECT count(*) FROM order_items)"
            )
            samples += 1
            if int(total) != items:
                torn_reads.append((total, items))

    reader = threading.Thread(target=read)
    reader.start()
    orders, items = store.plan("test", "orders", JSON_ARRAY), store.plan("test", "order_items", JSON_ARRAY)
    for turn in range(30):
        amount = turn % 7 + 1
        present = [{"item_id": number, "order_id": 1} for number in range(amount)]
        deletes = [{"item_id": number, "order_id": 1, "__op": 1} for number in range(amount, 10)]
        order_body = body(store, [order(1, total_amount=amount)])
        store.commit("test", turn, f"t{turn}", [(orders, [order_body]), (items, [body(store, present + deletes)])])
    stop.set()
    reader.join(30)
    assert torn_reads == []
    assert samples > 0


OPERATIONS = st.lists(
    st.lists(st.tuples(st.integers(0, 8), st.booleans(), st.integers(0, 99)), min_size=1, max_size=12),
    min_size=1,
    max_size=6,
)


@given(transactions=OPERATIONS)
@examples(25)
def test_upserts_and_deletes_agree_with_a_dictionary(transactions: list[list[tuple[int, bool, int]]]) -> None:
    expected: dict[int, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        store = with_tables(Store(Path(folder)))
        try:
            for operations in transactions:
                listed = []
                for key, delete, value in operations:
                    listed.append(order(key, value, __op=1 if delete else 0))
                    if delete:
                        expected.pop(key, None)
                    else:
                        expected[key] = value
                half = len(listed) // 2
                load(store, "orders", *(part for part in (listed[:half], listed[half:]) if part))
            assert dict(rows(store, "SELECT order_id, customer_id FROM orders")) == expected
        finally:
            store.close()


def test_an_update_of_a_duplicate_key_table_is_refused(store: Store) -> None:
    with pytest.raises(SqlError, match="Only primary key table support update"):
        run(store, QuerySession(), "UPDATE test.order_events SET note = 'x' WHERE event_id = 1")
