"""The page of the outbox: an event with rows of two tables is written whole and once."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession, functions as F

from starrocks_emulator.server import Emulator
from tests.support.query_port import query
from tests.support.quick_start import blocks
from tests.support.servers import program_for

pytestmark = [
    pytest.mark.spark,
    pytest.mark.emulator(
        "CREATE TABLE shop.orders (id INT NOT NULL, total DECIMAL(9, 2)) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)",
        "CREATE TABLE shop.order_items (order_id INT, line INT) DUPLICATE KEY(order_id) DISTRIBUTED BY HASH(order_id)",
    ),
]
(PROGRAM,), (PAYLOAD,) = blocks("docs/guides/outbox.md", "python"), blocks("docs/guides/outbox.md", "json")


class Outbox:
    """Events of one partition in a folder, one file a micro-batch, and the page's query over them."""

    def __init__(self, spark: SparkSession, server: Emulator, folder: Path) -> None:
        self.spark, self.server, self.folder, self.files = spark, server, folder / "topic", 0
        self.checkpoint = folder / "checkpoint"
        self.folder.mkdir()

    def put(self, *values: str | None) -> None:
        self.files += 1
        messages = [
            {"topic": "outbox.event.order", "partition": 0, "offset": 10 * self.files + number, "value": value}
            for number, value in enumerate(values)
        ]
        file = self.folder / f"{self.files}.json"
        file.write_text("\n".join(map(json.dumps, messages)))
        os.utime(file, (self.files, self.files))

    def run(self) -> None:
        columns = "topic STRING, partition INT, offset BIGINT, value STRING"
        reader = self.spark.readStream.schema(columns).option("maxFilesPerTrigger", 1)
        topic = reader.json(str(self.folder)).withColumn("value", F.col("value").cast("binary"))
        names: dict[str, Any] = {"topic": topic, "checkpoint": str(self.checkpoint), "brokers": "127.0.0.1:1"}
        names |= {"load_url": self.server.load_url, "query_url": self.server.query_url}
        program = "\n".join(line for line in PROGRAM.splitlines() if not line.startswith("topic ="))
        program = program_for(self.server, program)
        exec(program.replace(".start()", ".trigger(availableNow=True).start()"), names)
        assert names["query"].awaitTermination(120)

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        return query(self.server, sql)


@pytest.fixture
def outbox(spark: SparkSession, server: Emulator, tmp_path: Path) -> Outbox:
    return Outbox(spark, server, tmp_path)


def payload(order: int, lines: int, total: str = "1.10") -> str:
    rows = [("orders", {"id": order, "total": total})]
    rows += [("order_items", {"order_id": order, "line": line}) for line in range(lines)]
    return json.dumps([{"table": table, "op": "upsert", "row": json.dumps(row)} for table, row in rows])


def test_each_event_is_a_transaction_that_is_written_once(outbox: Outbox) -> None:
    outbox.put(payload(1, 2), None, payload(2, 1))
    outbox.put("[]", payload(3, 3))
    outbox.run()
    (outbox.checkpoint / "commits" / "1").unlink()
    outbox.run()
    assert outbox.ask("SELECT id FROM shop.orders ORDER BY id") == [(1,), (2,), (3,)]
    assert outbox.ask("SELECT order_id, count(*) FROM shop.order_items GROUP BY 1 ORDER BY 1") == [
        (1, 2),
        (2, 1),
        (3, 3),
    ]
    assert [row["table"] for row in json.loads(PAYLOAD)] == ["orders", "order_items", "order_items"]


_NO_LIST = r"\[USER_RAISED_EXCEPTION\] not a list of rows"  # the query's plan, in the same error, has the words too


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("{", _NO_LIST),
        pytest.param(payload(2, 1)[:-1], _NO_LIST, marks=pytest.mark.deep),
        pytest.param("null", _NO_LIST, marks=pytest.mark.deep),
        pytest.param('{"table": "orders"}', "Column payload is NULL", marks=pytest.mark.deep),
        ('[{"table": "orders", "row": "{}"}, null]', "Column (payload|table) is NULL"),
    ],
    ids=["no JSON", "cut", "null", "no list", "no row"],
)
def test_another_payload_stops_the_query(outbox: Outbox, value: str, words: str) -> None:
    outbox.put(payload(1, 1), value)
    with pytest.raises(StreamingQueryException, match=words):
        outbox.run()
    assert outbox.ask("SELECT id FROM shop.orders") == []
