"""Tables of a source that appear while a query runs, on librdkafka's broker and the emulator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest
from confluent_kafka import Producer

from starrocks_emulator.server import Emulator
from starrocks_txn_sink import DebeziumAssembly, SinkOptions, TableRules
from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.errors import InputError, ServerRefused
from starrocks_txn_sink.protocol.refusals import load_error
from starrocks_txn_sink.protocol.wire import Reply, Status
from starrocks_txn_sink.sink.schema.new_tables import NewTables, advising_tables
from starrocks_txn_sink.sink.schema.plan import TableLayout
from starrocks_txn_sink.sink.schema.source_tables import TablePlan
from starrocks_txn_sink.writer.messages import LaneReport, LaneWork, attach_report
from tests.support.connect_schema import change, field, key
from tests.support.debezium_feed import change as plain_change, postgres
from tests.support.query_port import query

FIELDS = {"id": field("int64"), "x": field("int32")}


def new_tables(
    server: Emulator, messages: list[tuple[str, bytes | None]], **settings: Any
) -> tuple[NewTables, Producer]:
    broker = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    place = next(iter(broker.list_topics(timeout=10).brokers.values()))
    for table, key_ in messages:
        broker.produce(f"shop.public.{table}", change(table, FIELDS, {"id": 1}), key_, partition=0)
    assert broker.flush(10) == 0
    options = SinkOptions(load_url=server.load_url, query_url=server.query_url, database="shop")
    topics = [f"shop.public.{table}" for table, _ in messages]
    config = {"bootstrap.servers": f"{place.host}:{place.port}"}
    return NewTables(options, DebeziumAssembly(**settings), topics, config, lambda _: TableLayout(buckets=3)), broker


def test_only_the_tables_that_lack_are_created_with_their_histories_and_layouts(server: Emulator) -> None:
    rules = [TableRules(tables="notes", history="{0}_log")]
    new, _broker = new_tables(server, [("notes", key({"id": FIELDS["id"]})), ("other", None)], rules=rules)
    schema_changes = list[Any]()
    new.create(["notes_log", "elsewhere"], schema_changes.append, Deadline.after(60, SystemClock()))
    assert [(change.table, change.creates) for change in schema_changes] == [("notes", True), ("notes_log", True)]
    assert all("BUCKETS 3" in change.sql for change in schema_changes)
    assert {("notes",), ("notes_log",)} <= {*query(server, "SHOW TABLES FROM shop")}
    new.create(["notes"], schema_changes.append, Deadline.after(60, SystemClock()))
    assert len(schema_changes) == 2


def test_a_new_table_without_a_key_stops_with_the_ways_out(server: Emulator) -> None:
    new, _broker = new_tables(server, [("notes", None)])
    with pytest.raises(InputError, match=r"cannot be created.*Table notes: its source has no key"):
        new.create(["notes"], lambda _: None, Deadline.after(60, SystemClock()))


def test_topics_without_schemas_create_nothing(server: Emulator) -> None:
    """Rows and declared keys describe such a table, and other tables' messages need no schema."""
    new, broker = new_tables(server, [("notes", key({"id": FIELDS["id"]}))])
    broker.produce("shop.public.plain", orjson.dumps(plain_change(postgres("plain", 1), None, None, {"id": 1})))
    assert broker.flush(10) == 0
    schema_changes = list[Any]()
    alone = replace(new, topics=["shop.public.plain"])
    alone.create(["plain"], schema_changes.append, Deadline.after(60, SystemClock()))
    assert schema_changes == []
    with_plain = replace(new, topics=[*new.topics, "shop.public.plain"])
    with_plain.create(["notes", "plain"], schema_changes.append, Deadline.after(60, SystemClock()))
    assert [change.table for change in schema_changes] == ["notes"]


def refused(new: NewTables | None, names: tuple[str, ...] = ()) -> str:
    """What the error about a load into `notes` says, whose rows have columns with these names."""
    words = "class X: Failed to find table notes in db 1"
    error = load_error(Reply(Status.FAILED, words), "label", "notes")
    attach_report(error, LaneReport("job", 0, 0, LaneWork(members={"notes": names} if names else {})))
    with pytest.raises(ServerRefused) as failure, advising_tables(new, SystemClock()):
        raise error
    return str(failure.value)


def test_a_refused_load_into_a_new_table_has_the_statement_that_creates_it(server: Emulator) -> None:
    without_key, _other_sink = new_tables(server, [("notes", None)])
    assert "No statement creates it. Table notes: its source has no key" in refused(without_key)
    new, _broker = new_tables(server, [("notes", key({"id": FIELDS["id"]})), ("keyless", None)])
    message = refused(new)
    statement = message[message.index("CREATE TABLE") : message.index("; or set schema_changes='apply'")]
    assert "`x` INT NULL" in statement
    query(server, statement)
    assert "table=notes" in message


def test_without_a_schema_it_has_the_names_in_the_rows(server: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Its rows name the columns a, id. Create the table" in refused(None, ("id", "a"))
    assert "Create the table in the database" in refused(None)
    new, _broker = new_tables(server, [("other", key({"id": FIELDS["id"]}))])
    assert "Its rows name the columns id. Create the table" in refused(new, ("id",))

    def away(*_: object) -> str:
        raise InputError("Kafka is away.")

    monkeypatch.setattr(NewTables, "advice", away)
    assert "Create the table in the database" in refused(new)


def test_a_rule_for_a_column_of_other_tables_does_not_refuse_a_new_table(server: Emulator) -> None:
    """A rule that is almost for the new table or for its column is taken for a mistake: it would mask nothing."""
    query(server, "CREATE TABLE shop.people (id BIGINT NOT NULL, mail STRING) PRIMARY KEY (id)")
    schema_changes = list[Any]()
    new, _broker = new_tables(
        server, [("notes", key({"id": FIELDS["id"]}))], rules=[TableRules(tables=".*", mask={"mail": "null"})]
    )
    new.create(["notes"], schema_changes.append, Deadline.after(60, SystemClock()))
    assert [change.table for change in schema_changes] == ["notes"]
    new, _broker = new_tables(
        server,
        [("texts", key({"id": FIELDS["id"]}))],
        rules=[TableRules(tables="texts", mask={"idd": "sha256"}, salt="s")],
    )
    with pytest.raises(InputError, match="a rule names the column idd"):
        new.create(["texts"], schema_changes.append, Deadline.after(60, SystemClock()))
    new, _broker = new_tables(
        server, [("texts", key({"id": FIELDS["id"]}))], rules=[TableRules(tables="text", mask={"mail": "null"})]
    )
    with pytest.raises(InputError, match=r"Table texts: a rule is for the tables text, .* Did you mean texts\?"):
        new.create(["texts"], schema_changes.append, Deadline.after(60, SystemClock()))


def test_another_driver_that_creates_the_table_first_is_no_failure(
    server: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, _broker = new_tables(server, [("notes", key({"id": FIELDS["id"]}))])
    schema_changes, make = list[Any](), TablePlan.make

    def made(plan: TablePlan, seconds: float) -> None:
        make(plan, seconds)
        query(server, "CREATE TABLE shop.notes (id BIGINT NOT NULL) PRIMARY KEY (id)")

    monkeypatch.setattr(TablePlan, "make", made)
    new.create(["notes"], schema_changes.append, Deadline.after(60, SystemClock()))
    assert [(change.table, change.creates) for change in schema_changes] == [("notes", False)]
