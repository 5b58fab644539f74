"""The reader's statement sees every torn state and none in whole ones. DuckDB plays the server here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import duckdb
import orjson
import pytest
import sqlglot

from starrocks_demo.reader import WITNESS, Sample, judge
from starrocks_demo.verdict import TABLES
from starrocks_demo.workload import SourceTransaction, Workload, WorkloadOptions
from tests.support.depth import is_deep, scaled

(WITNESS_HERE,) = sqlglot.transpile(WITNESS, read="starrocks", write="duckdb")
KINDS = {
    "orders": "order_id BIGINT, customer_id BIGINT, total_amount DECIMAL(10,2), order_status VARCHAR",
    "order_items": "item_id BIGINT, order_id BIGINT, product_name VARCHAR, quantity INT, price DECIMAL(10,2)",
    "order_events": "event_id BIGINT, source_partition INT, txn_id VARCHAR, txn_no BIGINT, txn_rows INT, "
    "changed_table VARCHAR, change VARCHAR, order_id BIGINT, item_id BIGINT, "
    "amount_delta DECIMAL(12,2), status_delta INT",
}

Event = dict[str, Any]


class Database:
    def __init__(self) -> None:
        self.connection = duckdb.connect(config={"threads": 1})
        self.connection.execute("CREATE SCHEMA test")
        for table, columns in KINDS.items():
            self.connection.execute(f"CREATE TABLE test.{table} ({columns})")

    def apply(self, events: Sequence[Event]) -> None:
        for event in events:
            table = TABLES[event["table"]]
            row = orjson.loads(event["row"])
            if table.name != "order_events":
                self.connection.execute(f"DELETE FROM test.{table.name} WHERE {table.key} = ?", [row[table.key]])
            if event["op"] != "delete":
                marks = ", ".join("?" for _ in table.columns)
                self.connection.execute(
                    f"INSERT INTO test.{table.name} VALUES ({marks})", [row[column] for column in table.columns]
                )

    def look(self) -> Sample:
        return judge(self.connection.execute(WITNESS_HERE).fetchall())

    def look_as_if(self, events: Sequence[Event]) -> Sample:
        """A sample with `events` applied, which are undone afterwards."""
        self.connection.execute("BEGIN")
        try:
            self.apply(events)
            return self.look()
        finally:
            self.connection.execute("ROLLBACK")


@pytest.fixture
def database() -> Iterator[Database]:
    database = Database()
    yield database
    database.connection.close()


def data(transaction: SourceTransaction) -> list[Event]:
    return [event for line in transaction.lines if (event := orjson.loads(line))["type"] == "DATA"]


def transactions(count: int, **options: Any) -> list[SourceTransaction]:
    workload = Workload(WorkloadOptions(partitions=2, seed=21, bulk_every=0, **options))
    return [partition.next() for _ in range(count) for partition in workload.partitions]


def test_columns_are_those_of_the_tables() -> None:
    for name, columns in KINDS.items():
        assert [column.split()[0] for column in columns.split(", ")] == list(TABLES[name].columns)


def test_empty_tables_are_whole(database: Database) -> None:
    assert database.look() == Sample((), {}, {"orders": 0, "order_items": 0, "order_events": 0})


def test_whole_transactions_are_never_torn(database: Database) -> None:
    newest = {}
    for transaction in transactions(scaled(40), abandoned_share=0.0):
        database.apply(data(transaction))
        if transaction.txn_no:
            newest[transaction.partition] = transaction.txn_no
        sample = database.look()
        assert sample.torn == ()
        assert sample.newest == newest


def test_every_cut_of_a_transaction_is_torn(database: Database) -> None:
    samples, count = 0, 5 if is_deep() else 2
    for transaction in transactions(count, abandoned_share=0.0):
        events = data(transaction)
        for cut in range(1, len(events), 1 if is_deep() else 5):
            samples += 1
            assert database.look_as_if(events[:cut]).torn, f"cut after {cut} of {len(events)} rows"
        database.apply(events)
    assert samples > (16 if is_deep() else 3) * count


@pytest.mark.parametrize("missing", ["orders", "order_items", "order_events"])
def test_a_transaction_without_one_of_its_tables_is_torn(database: Database, missing: str) -> None:
    """As when a server publishes table after table."""
    samples, count = 0, scaled(15)
    for transaction in transactions(count, abandoned_share=0.0):
        events = data(transaction)
        events_left = [event for event in events if event["table"] != missing]
        if any(event["table"] == missing for event in events) and events_left:
            samples += 1
            assert database.look_as_if(events_left).torn
        database.apply(events)
    assert samples > count / 2


def test_a_second_copy_is_torn(database: Database) -> None:
    first, *_ = [transaction for transaction in transactions(3) if transaction.txn_no == 1]
    database.apply(data(first))
    assert database.look().torn == ()
    database.apply(data(first))
    assert "repeated = 1 in partition 0" in database.look().torn


def test_a_later_transaction_before_an_earlier_one_is_torn(database: Database) -> None:
    first, second = [transaction for transaction in transactions(6) if transaction.partition == 1][:2]
    assert (first.txn_no, second.txn_no) == (1, 2)
    assert "missing = 1 in partition 1" in database.look_as_if(data(second)).torn
    database.apply(data(first))
    assert database.look_as_if(data(second)).torn == ()


def test_rows_of_an_unfinished_transaction_are_torn(database: Database) -> None:
    workload = Workload(WorkloadOptions(partitions=1, seed=2))
    database.apply(data(workload.partitions[0].make_unfinished()))
    assert any(violation.startswith("unfinished = 1") for violation in database.look().torn)


def test_a_torn_sample_names_no_row_value(database: Database) -> None:
    (first, *_) = transactions(3)
    assert all(len(violation) < 80 for violation in database.look_as_if(data(first)[:3]).torn)
