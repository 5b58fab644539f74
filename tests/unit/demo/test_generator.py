"""The workload is reproducible, valid, keeps its invariants in every committed state, and knows the truth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any

import orjson
import pytest
from hypothesis import given, strategies as st

from starrocks_demo.shop import EventLog, EventRow, ItemRow, OrderRow, Truth
from starrocks_demo.workload import SourceTransaction, Workload, WorkloadOptions
from tests.support.depth import examples

Tables = dict[str, dict[int, dict[str, Any]]]
KEYS = {"orders": "order_id", "order_items": "item_id", "order_events": "event_id"}


def events_of(transaction: SourceTransaction) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in transaction.lines]


def take(workload: Workload, count: int) -> Iterator[SourceTransaction]:
    for _ in range(count):
        for partition in workload.partitions:
            yield partition.next()


def apply(tables: Tables, transaction: SourceTransaction) -> None:
    """A serial replay with no code in common with the generator."""
    events = events_of(transaction)
    if events[-1]["type"] != "END":
        return
    for event in events[1:-1]:
        row = orjson.loads(event["row"])
        rows, key = tables[event["table"]], row[KEYS[event["table"]]]
        if event["op"] == "delete":
            del rows[key]
        else:
            assert (key in rows) == (event["op"] == "update")
            rows[key] = row


def empty_tables() -> Tables:
    return {table: {} for table in KEYS}


def cents(value: str) -> int:
    return int(Decimal(value) * 100)


def item_sums(tables: Tables) -> dict[int, int]:
    sums: Counter[int] = Counter()
    for item in tables["order_items"].values():
        sums[item["order_id"]] += item["quantity"] * cents(item["price"])
    return sums


def truth_rows(truth: Truth) -> Tables:
    """The truth in the events' own form."""

    def plain(row: OrderRow | ItemRow | EventRow) -> dict[str, Any]:
        money = {"total_amount", "price", "amount_delta"}
        return {name: value / 100 if name in money else value for name, value in row._asdict().items()}

    return {table: {key: plain(row) for key, row in getattr(truth, table).items()} for table in KEYS}


def with_numbers(tables: Tables) -> Tables:
    money = {"total_amount", "price", "amount_delta"}
    return {
        table: {
            key: {name: float(value) if name in money else value for name, value in row.items()}
            for key, row in rows.items()
        }
        for table, rows in tables.items()
    }


def test_same_seed_same_lines_and_another_seed_others() -> None:
    first, again, other_lines = (
        [transaction.lines for transaction in take(Workload(WorkloadOptions(seed=seed)), 60)] for seed in (7, 7, 8)
    )
    assert first == again
    assert first != other_lines


def test_the_order_in_which_partitions_are_asked_does_not_matter() -> None:
    first, two = Workload(WorkloadOptions(partitions=2)), Workload(WorkloadOptions(partitions=2))
    lines_one = [[first.partitions[p].next().lines for _ in range(50)] for p in (0, 1)]
    lines_two = [[two.partitions[p].next().lines for _ in range(50)] for p in (1, 0)]
    assert lines_one == lines_two[::-1]


@examples(25)
@given(
    seed=st.integers(0, 2**32),
    partitions=st.integers(1, 5),
    largest=st.integers(1, 60),
    abandoned=st.sampled_from([0.0, 0.2]),
)
def test_serial_replay_of_the_lines_gives_the_truth(seed: int, partitions: int, largest: int, abandoned: float) -> None:
    options = WorkloadOptions(
        partitions=partitions, seed=seed, largest=largest, bulk_every=17, bulk_rows=(80, 90), abandoned_share=abandoned
    )
    workload, tables = Workload(options), empty_tables()
    for transaction in take(workload, 40):
        apply(tables, transaction)
    assert with_numbers(tables) == truth_rows(workload.truth())


@examples(15)
@given(seed=st.integers(0, 2**32))
def test_every_committed_state_keeps_the_invariants(seed: int) -> None:
    workload, tables = (
        Workload(WorkloadOptions(partitions=2, seed=seed, bulk_every=30, bulk_rows=(60, 60))),
        empty_tables(),
    )
    for transaction in take(workload, 40):
        apply(tables, transaction)
        sums = item_sums(tables)
        assert {key: cents(row["total_amount"]) for key, row in tables["orders"].items()} == {
            key: sums.get(key, 0) for key in tables["orders"]
        }
        assert set(sums) <= set(tables["orders"])
        events = tables["order_events"].values()
        assert sum(cents(row["amount_delta"]) for row in events) == sum(sums.values())
        states = sum(len(row["order_status"]) for row in tables["orders"].values())
        assert sum(row["status_delta"] for row in events) == states
        complete = Counter((row["source_partition"], row["txn_no"], row["txn_rows"]) for row in events)
        assert all(count == rows for (_, _, rows), count in complete.items())


def test_sizes_kinds_and_bulk() -> None:
    workload = Workload(WorkloadOptions(partitions=3, seed=5, bulk_every=100))
    all_transactions = list(take(workload, 200))
    small = [transaction.rows for transaction in all_transactions if transaction.txn_no > 0 and transaction.rows < 1000]
    bulk = [transaction.rows for transaction in all_transactions if transaction.rows >= 1000]
    assert (min(small), max(small)) == (1, 50)
    assert len(bulk) == 6
    assert max(bulk) <= 3000
    assert any(transaction.txn_no == 0 and transaction.rows == 0 for transaction in all_transactions)
    assert any(not transaction.ended for transaction in all_transactions)
    kinds = {
        (event["table"], event["op"])
        for transaction in all_transactions
        for event in events_of(transaction)
        if event["type"] == "DATA"
    }
    assert kinds == {
        (table, op)
        for table in ("orders", "order_items", "order_events")
        for op in ("insert", "update", "delete")
        if table != "order_events" or op == "insert"
    }


def test_a_short_run_has_a_bulk_transaction_too() -> None:
    assert any(transaction.rows >= 1000 for transaction in take(Workload(WorkloadOptions()), 100))


def test_positions_have_no_gap() -> None:
    workload = Workload(WorkloadOptions(partitions=2, seed=11))
    positions: dict[str, list[int]] = {"0": [], "1": []}
    for transaction in take(workload, 80):
        for event in events_of(transaction):
            positions[event["source_partition"]].append(event["position"])
    assert all(position == list(range(len(position))) for position in positions.values())


def test_keys_belong_to_one_partition() -> None:
    workload = Workload(WorkloadOptions(partitions=3, seed=2))
    for transaction in take(workload, 60):
        for event in events_of(transaction):
            if event["type"] == "DATA" and transaction.ended:
                row = orjson.loads(event["row"])
                assert {row[key] % 3 for key in KEYS.values() if row.get(key)} <= {transaction.partition}


def test_rows_fit_the_tables() -> None:
    workload = Workload(WorkloadOptions(seed=4))
    for event in (event for transaction in take(workload, 150) for event in events_of(transaction)):
        if event["type"] != "DATA":
            assert {"row", "table", "op"}.isdisjoint(event)
            continue
        row = orjson.loads(event["row"])
        assert len((row.get("product_name") or "").encode()) <= 128
        assert len(row.get("order_status", "")) <= 32
        for amount in (row[name] for name in ("total_amount", "price", "amount_delta") if name in row):
            assert abs(Decimal(amount)) < 10**8
            assert Decimal(amount).as_tuple().exponent == -2
        assert all(abs(row[key]) < 2**63 for key in KEYS.values() if row.get(key))


def test_rows_of_unfinished_transactions_can_be_recognized() -> None:
    workload = Workload(WorkloadOptions(partitions=2, seed=9, abandoned_share=0.3))
    ids: list[int] = []
    for transaction in take(workload, 100):
        for event in events_of(transaction):
            if event.get("table") == "order_events":
                row = orjson.loads(event["row"])
                ids.append(row["event_id"])
                assert (row["txn_no"] < 0) == (row["event_id"] < 0) == (not transaction.ended)
    assert len(ids) == len(set(ids))
    assert min(ids) < 0


def log_of(*transactions: Iterable[int]) -> EventLog:
    log = EventLog(1, 3)
    for changes in transactions:
        for order_id in changes:
            log.append(1, order_id, 0, -5, 2)
        log.end_transaction()
    return log


def test_event_log_gives_its_rows_back() -> None:
    log = log_of([10], [20, 21], [30])
    assert [log.row(index) for index in (1, 2)] == [
        EventRow(4, 1, "p1-0000002", 2, 2, "orders", "update", 20, None, -5, 2),
        EventRow(7, 1, "p1-0000002", 2, 2, "orders", "update", 21, None, -5, 2),
    ]
    assert [log.row(index).txn_rows for index in range(4)] == [1, 2, 2, 1]


def test_truth_of_something_never_written() -> None:
    truth = Workload(WorkloadOptions(partitions=2)).truth()
    assert truth.source_transactions == 0
    assert 5 not in truth.order_events
    with pytest.raises(KeyError):
        truth.order_events[5]


def test_refuses_options_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="partitions"):
        WorkloadOptions(partitions=0)
    with pytest.raises(ValueError, match="at least one row"):
        WorkloadOptions(smallest=5, largest=4)
