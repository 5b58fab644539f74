"""Streams of the data source, which pipelines name by its format: exactly once, and a full refresh is no replay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, functions as F, types as T

from starrocks_txn_sink import StarRocksDataSource
from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.spark_version import STREAMS_OF_DATA_SOURCE
from tests.support.canal_feed import flat
from tests.support.debezium_feed import KAFKA, change, marker, message, postgres
from tests.support.exactly_once_shop import Shop
from tests.support.maxwell_feed import transaction
from tests.support.servers import place_of

pytestmark = [
    pytest.mark.spark,
    pytest.mark.usefixtures("data_source"),
    pytest.mark.emulator("CREATE TABLE shop.plain (id BIGINT NOT NULL, name VARCHAR(9)) DUPLICATE KEY(id)"),
    pytest.mark.skipif(not STREAMS_OF_DATA_SOURCE.works, reason="needs a newer Spark"),
]
ROWS = "SELECT id, name FROM shop.plain ORDER BY id"


class Files:
    """A folder of JSON lines; each file is a micro-batch."""

    def __init__(self, shop: Shop, schema: str) -> None:
        self.shop, self.folder, self.schema, self.count = shop, shop.folder / "in", schema, 0
        self.folder.mkdir()

    def add(self, *rows: dict[str, Any]) -> None:
        self.count += 1
        hidden = self.folder / f".{self.count}"
        hidden.write_bytes(b"\n".join(map(orjson.dumps, rows)))
        hidden.rename(self.folder / f"{self.count:03d}.json")

    @property
    def frame(self) -> DataFrame:
        reader = self.shop.spark.readStream.schema(self.schema).option("maxFilesPerTrigger", 1)
        return reader.json(str(self.folder))


def line(kind: str, txn: str, **fields: str) -> str:
    return orjson.dumps({"type": kind, "txn_id": txn, **fields}).decode()


def run(frame: DataFrame, shop: Shop, checkpoint: str = "checkpoint", **options: str) -> None:
    addresses = place_of(shop.server)
    writer = frame.writeStream.format("starrocks_txn").options(**{**addresses, "job": "flow", **options})
    writer = writer.option("checkpointLocation", str(shop.checkpoint(checkpoint))).queryName(checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination(120)


def repeat_last(folder: Path) -> None:
    """Have Spark run the last micro-batch again: as after a crash between the commit and Spark's own note of it."""
    newest = max((file for file in (folder / "commits").iterdir() if file.name.isdecimal()), key=lambda f: int(f.name))
    newest.unlink()
    (folder / "commits" / f".{newest.name}.crc").unlink(missing_ok=True)


def test_typed_rows_once_over_restarts_and_replays(shop: Shop) -> None:
    files = Files(shop, "id long, name string")
    files.add({"id": 1, "name": "Ann"}, {"id": 2, "name": 'ä"\\'})
    files.add({"id": 3})
    run(files.frame, shop, table="plain")
    assert shop.ask(ROWS) == [(1, "Ann"), (2, 'ä"\\'), (3, None)]
    repeat_last(shop.checkpoint("checkpoint"))
    run(files.frame, shop, table="plain")
    files.add({"id": 4, "name": "Dan"})
    run(files.frame, shop, table="plain")
    assert [number for number, _ in shop.ask(ROWS)] == [1, 2, 3, 4]


def test_a_replay_with_other_rows_is_refused(shop: Shop) -> None:
    files = Files(shop, "id long, name string")
    files.add({"id": 1, "name": "Ann"})
    run(files.frame, shop, table="plain")
    repeat_last(shop.checkpoint("checkpoint"))
    with pytest.raises(StreamingQueryException, match="SourceChanged"):
        run(files.frame.selectExpr("id", "'Bob' AS name"), shop, table="plain")
    assert shop.ask(ROWS) == [(1, "Ann")]


def test_texts_of_several_tables_and_deletes(shop: Shop) -> None:
    shop.ask("CREATE TABLE shop.keyed (id BIGINT NOT NULL, name VARCHAR(9)) PRIMARY KEY(id)")
    files = Files(shop, "table string, row string, op string")
    files.add({"table": "plain", "row": '{"id":1}'}, {"table": "keyed", "row": '{"id":2,"name":"x"}'})
    run(files.frame, shop)
    files.add({"table": "keyed", "row": '{"id":2}', "op": "delete"}, {"table": "keyed", "row": '{"id":3}'})
    run(files.frame, shop)
    assert (shop.ask(ROWS), shop.ask("SELECT id FROM shop.keyed")) == ([(1, None)], [(3,)])


@pytest.mark.parametrize("replay", [pytest.param(False, marks=pytest.mark.deep), True])
def test_source_transactions_of_raw_events(shop: Shop, replay: bool) -> None:
    """The frame of Spark's Kafka source as it is: a transaction over two micro-batches is one commit."""
    files = Files(shop, "value string, topic string, partition int, offset long, timestamp timestamp")

    def events(first: int, *lines: str) -> None:
        files.add(*({"value": text, "topic": "t", "partition": 0, "offset": first + n} for n, text in enumerate(lines)))

    row = [orjson.dumps({"id": number}).decode() for number in range(4)]
    data = [line("DATA", "a", table="plain", row=text) for text in row]
    events(0, line("BEGIN", "a"), data[0])
    run(files.frame, shop, assemble="transactions")
    assert shop.ask(ROWS) == []
    events(2, data[1], line("END", "a"), line("BEGIN", "b"), line("DATA", "b", table="plain", row=row[2]))
    run(files.frame, shop, assemble="transactions")
    assert [number for number, _ in shop.ask(ROWS)] == [0, 1]
    if replay:
        repeat_last(shop.checkpoint("checkpoint"))
    events(6, line("END", "b"))
    run(files.frame, shop, assemble="transactions")
    assert [number for number, _ in shop.ask(ROWS)] == [0, 1, 2]


@pytest.mark.parametrize(
    "key", [pytest.param("key", marks=pytest.mark.deep), "7", pytest.param(None, marks=pytest.mark.deep)]
)
def test_debezium_change_by_change(shop: Shop, key: str | None) -> None:
    """A column `key` that is no message's says nothing, and none is needed."""
    shop.ask("CREATE TABLE shop.people (id BIGINT NOT NULL, name VARCHAR(9)) PRIMARY KEY(id)")
    rows = [(1, "Ann"), (2, "Bob"), (1, "Eve")]
    changes = [
        change(postgres("people", lsn), None, None, {"id": number, "name": name})
        for lsn, (number, name) in enumerate(rows)
    ]
    messages = [message(n, value, "shop.public.people") for n, value in enumerate(changes)]
    frame = shop.spark.createDataFrame(messages, KAFKA)
    folder = shop.folder / "kafka"
    frame = frame.withColumn("key", F.expr(key)) if key else frame.drop("key")
    frame.withColumn("timestamp", F.current_timestamp()).coalesce(1).write.parquet(str(folder))
    stream = shop.spark.readStream.schema(shop.spark.read.parquet(str(folder)).schema).parquet(str(folder))
    run(stream, shop, **{"assemble": "debezium", "assemble.transactions": "none"})
    assert shop.ask("SELECT id, name FROM shop.people ORDER BY id") == [(1, "Eve"), (2, "Bob")]


def test_whole_transactions_of_debezium(shop: Shop) -> None:
    """The END comes a micro-batch later than the rows, and again after a crash."""
    shop.ask("CREATE TABLE shop.people (id BIGINT NOT NULL, name VARCHAR(9)) PRIMARY KEY(id)")
    files = Files(shop, "topic string, partition int, offset long, key string, value string, timestamp timestamp")

    def add(topic: str, *values: Any, first: int = 0) -> None:
        places = enumerate(map(orjson.dumps, values), first)
        files.add(*({"topic": topic, "partition": 0, "offset": n, "value": text.decode()} for n, text in places))

    add("shop.transaction", marker("BEGIN", "7:1"))
    people = [(1, "Ann"), (2, "Bob")]
    add(
        "shop.public.people",
        *(change(postgres("people", n), "7:1", n, {"id": n, "name": name}) for n, name in people),
    )
    settings = {"assemble": "debezium", "assemble.open_timeout": "1 hour"}
    select = "SELECT id, name FROM shop.people ORDER BY id"
    run(files.frame, shop, **settings)
    assert shop.ask(select) == []
    add("shop.transaction", marker("END", "7:1", {"public.people": 2}), first=1)
    run(files.frame, shop, **settings)
    assert shop.ask(select) == people
    repeat_last(shop.checkpoint("checkpoint"))
    run(files.frame, shop, **settings)
    assert shop.ask(select) == people


@pytest.mark.parametrize("kind", ["maxwell", pytest.param("canal", marks=pytest.mark.deep)])
def test_messages_of_mysqls_other_readers(shop: Shop, kind: str) -> None:
    """A transaction of Maxwell's goes on in the next micro-batch; both are known again after a crash."""
    shop.ask("CREATE TABLE shop.people (id BIGINT NOT NULL, name VARCHAR(9)) PRIMARY KEY(id)")
    files = Files(shop, "topic string, partition int, offset long, key string, value string, timestamp timestamp")
    people, select = [(1, "Ann"), (2, "Bob")], "SELECT id, name FROM shop.people ORDER BY id"
    rows = [{"id": number, "name": name} for number, name in people]
    messages = [flat("INSERT", [{"id": str(row["id"]), "name": str(row["name"])}], table="people") for row in rows]
    if kind == "maxwell":
        messages = transaction(1, *(("insert", row) for row in rows), table="people")
    for offset, text in enumerate(messages):
        files.add({"topic": "m", "partition": 0, "offset": offset, "value": orjson.dumps(text).decode()})
        run(files.frame, shop, assemble=kind)
    assert shop.ask(select) == people
    repeat_last(shop.checkpoint("checkpoint"))
    run(files.frame, shop, assemble=kind)
    assert shop.ask(select) == people


@pytest.mark.parametrize("kind", ["rows", pytest.param("events", marks=pytest.mark.deep)])
def test_a_full_refresh_is_no_replay(shop: Shop, kind: str) -> None:
    """It begins with micro-batch 0 of a new checkpoint: under the same job nothing is left out, or written twice."""
    if kind == "rows":
        files, options = Files(shop, "id long, name string"), {"table": "plain"}
        files.add({"id": 1, "name": "Ann"})
    else:
        files = Files(shop, "value string, topic string, partition int, offset long")
        options = {"assemble": "transactions"}
        texts = [line("BEGIN", "a"), line("DATA", "a", table="plain", row='{"id":1,"name":"Ann"}'), line("END", "a")]
        files.add(*({"value": text, "topic": "t", "partition": 0, "offset": n} for n, text in enumerate(texts)))
    run(files.frame, shop, **options)
    for _ in range(2):
        with pytest.raises(StreamingQueryException, match=r"full refresh, or a lost checkpoint.*a new `job`"):
            run(files.frame, shop, "refreshed", **options)
        assert shop.ask(ROWS) == [(1, "Ann")]
    shop.ask("TRUNCATE TABLE shop.plain")
    run(files.frame, shop, "refreshed", **options, job="flow-2")
    assert shop.ask(ROWS) == [(1, "Ann")]


def test_two_flows_never_share_a_job(shop: Shop) -> None:
    """Both would take it from each other before each micro-batch, and nobody would be fenced."""
    files = Files(shop, "id long, name string")
    files.add({"id": 1})
    run(files.frame, shop, table="plain")
    run(files.frame, shop, "other", table="plain", job="other")
    files.add({"id": 2})
    with pytest.raises(StreamingQueryException, match="another flow has this `job`"):
        run(files.frame, shop, "other", table="plain")
    run(files.frame, shop, table="plain")
    assert [number for number, _ in shop.ask(ROWS)] == [1, 1, 2]


def test_an_outage_in_between_is_waited_for(shop: Shop) -> None:
    files = Files(shop, "id long, name string")
    files.add({"id": 1})
    files.add({"id": 2})
    shop.fault({"operation": "commit", "action": "answer", "status": 503, "body": "", "nth": 2})
    run(files.frame, shop, table="plain")
    assert shop.ask(ROWS) == [(1, None), (2, None)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"table": "plain", "job": ""}, "job"),
        ({"table": "plain"}, "needs `job`"),
        ({"job": "flow", "assemble": "avro"}, "Give one of transactions, debezium"),
        ({"job": "flow", "assemble": "debezium"}, "lacks the column value, .*of Spark's Kafka source"),
        ({"job": "flow", "assemble": "debezium", "assemble.tables": "{orders}"}, "assemble.tables is no JSON"),
        ({"job": "flow", "assemble": "transactions", "assemble.interleaving": "true"}, "no argument 'interleaving'"),
        ({"job": "flow"}, "no option names its table"),
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, str], words: str) -> None:
    """Where Spark asks for the writer, before a query has begun."""
    schema = T.StructType([T.StructField("id", T.LongType()), T.StructField("name", T.StringType())])
    addresses = {"load_url": "http://127.0.0.1:8030", "query_url": "mysql://127.0.0.1:9030", "database": "shop"}
    with pytest.raises((OptionError, InputError), match=words):
        StarRocksDataSource(addresses | options).streamWriter(schema, overwrite=False)


def test_a_refusal_ends_the_query(shop: Shop) -> None:
    files = Files(shop, "id long, name string")
    files.add({"id": 1})
    writer = files.frame.writeStream.format("starrocks_txn")
    writer = writer.options(**place_of(shop.server))
    with pytest.raises(StreamingQueryException, match="needs `job`"):
        writer.option("checkpointLocation", str(shop.checkpoint())).start().awaitTermination(60)
    assert shop.ask(ROWS) == []
