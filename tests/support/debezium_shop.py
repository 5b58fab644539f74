"""The shop's folder with Debezium's messages of all topics in it, and queries whose sink assembles them."""

from __future__ import annotations

import json
import os
from typing import Any

from pyspark.sql import DataFrame, functions as F

from starrocks_txn_sink import DebeziumAssembly, Receipt, StarRocksSink, assemble_debezium
from starrocks_txn_sink.sources import parse_debezium, parse_debezium_transactions
from tests.support.debezium_feed import change, marker, message, postgres
from tests.support.exactly_once_shop import Shop

_SINK = (
    "commit_interval",
    "job",
    "lanes",
    "on_bad_rows",
    "schema_changes",
    "shuffle",
)  # options of the sink, not the assembly
_PARSING = ("binary_handling_mode", "decimal_handling_mode", "tables", "time_precision_mode")  # of the stage's parser
Changes = dict[str, Any]
_TEXTS = "topic STRING, partition INT, offset BIGINT, key STRING, value STRING, time BIGINT"


def insert(txn: int, order: int, **fields: Any) -> Changes:
    """Row `order` of the transaction; its rows have positions from 1000 × the transaction on."""
    lsn = 1000 * txn + order
    row = {"part": "shop", "position": txn, "seq": order, "note": "x"}
    return change(postgres("items", lsn), f"{txn}:{lsn}", order, row | fields)


def update(txn: int, order: int, position: int | None = None, **fields: Any) -> Changes:
    """Row `order` of the transaction changes the row of another one, or of its own."""
    changed = insert(txn, order, **fields)
    changed["op"] = "u"
    changed["after"] |= {} if position is None else {"position": position}
    return changed


def read(number: int) -> Changes:
    """A row of a snapshot."""
    row = {"part": "snapshot", "position": number, "seq": 0, "note": "x"}
    return change(postgres("items", 1), None, None, row, op="r")


def begin(txn: int) -> Changes:
    return marker("BEGIN", f"{txn}:{1000 * txn}")


def end(txn: int, rows: int) -> Changes:
    return marker("END", f"{txn}:{1000 * txn + 999}", {"public.items": rows} if rows else {})


def whole(txn: int, rows: int) -> list[Changes]:
    return [begin(txn), *(insert(txn, order) for order in range(1, rows + 1)), end(txn, rows)]


class DebeziumShop(Shop):
    """`told` has the events of the last query but receipts, `heard` all of all queries; a file is a micro-batch."""

    heard: tuple[Any, ...] = ()
    assembly: Any = DebeziumAssembly

    def put(self, *values: Changes, partition: int = 0, key: Any = None) -> None:
        """One more file of Debezium's messages; `partition` is Kafka's, `key` that of each row's message."""
        self.files += 1
        messages = []
        for number, value in enumerate(values):
            topic = "shop.transaction" if "status" in value else "shop.public.items"
            place = (self.files * 1000 + number, value, topic)
            _, _, offset, _, text = message(*place)
            fields = {"topic": topic, "partition": partition, "offset": offset, "value": text and text.decode()}
            fields |= {"key": json.dumps(key)} if key and "status" not in value else {}
            messages.append(fields)
        self.put_file(messages)

    def put_texts(self, topic: str, *messages: tuple[str | None, str | None]) -> None:
        """One more file of messages of one partition: key and value."""
        self.files += 1
        place = {"topic": topic, "partition": 0}
        self.put_file(
            [
                {**place, "offset": self.files * 1000 + number, "key": key, "value": value}
                for number, (key, value) in enumerate(messages)
            ]
        )

    def put_file(self, messages: list[dict[str, Any]]) -> None:
        lines = [json.dumps(message | {"time": message["offset"]}) for message in messages]
        file = self.source / f"{self.files}.json"
        file.write_text("\n".join(lines))
        os.utime(file, (self.files, self.files))

    def topics(self, files: int = 1) -> DataFrame:
        """The messages as Spark's Kafka source gives them."""
        return self.messages(self.spark.readStream.option("maxFilesPerTrigger", files).text(str(self.source)))

    def messages(self, text: DataFrame) -> DataFrame:
        """The messages in lines of text."""
        read = text.select(F.from_json("value", _TEXTS).alias("m")).select("m.*")
        binary = {name: F.col(name).cast("binary") for name in ("key", "value")}
        return read.withColumns({**binary, "timestamp": F.timestamp_millis("time")}).drop("time")

    def go(
        self,
        checkpoint: str = "checkpoint",
        *,
        files: int = 1,
        stage: bool = False,
        **settings: Any,
    ) -> list[Receipt]:
        """Run a query until the folder is read; with `stage` Spark's stage assembles. `told` has the sink's events."""
        options = {name: settings.pop(name) for name in _SINK if name in settings}
        options |= {"tables": settings.pop("sink_tables")} if "sink_tables" in settings else {}
        receipts: list[Receipt] = []
        self.told: list[Any] = []

        def listen(event: Any) -> None:
            self.heard = (*self.heard, event)
            (receipts.append(event.fields["receipt"]) if "receipt" in event.fields else self.told.append(event))

        frame, assemble = self.topics(files), None
        if stage:
            parsing = {name: settings.pop(name) for name in _PARSING if name in settings}
            markers = parse_debezium_transactions(frame.where("topic = 'shop.transaction'"))
            changes = parse_debezium(frame.where("topic <> 'shop.transaction'"), **parsing)
            frame = assemble_debezium(changes, markers, **settings)
        else:
            assemble = self.assembly(reader="spark", **settings)
        sink = StarRocksSink(self.options(**options), assemble=assemble, listener=listen)
        writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(self.checkpoint(checkpoint)))
        assert writer.trigger(availableNow=True).start().awaitTermination(120)
        return receipts

    def rows(self) -> list[tuple[int, int]]:
        """(transaction, row), in order."""
        return [(int(txn), int(row)) for txn, row in self.ask("SELECT position, seq FROM shop.items ORDER BY 1, 2")]

    def positions(self) -> dict[str, int]:
        """The ledger's position of each source partition."""
        ledger = self.ask("SELECT name, position FROM shop._starrocks_txn_sink_ledger WHERE kind = 'position'")
        return {str(name): int(position) for name, position in ledger}

    def set_time(self, batch: int, *, later: int) -> None:
        """Let Spark's log say that it planned a micro-batch so many seconds later."""
        offsets = self.checkpoint() / "offsets"
        version, metadata, *ends = (offsets / str(batch)).read_text().split("\n")
        fields = json.loads(metadata)
        fields["batchTimestampMs"] += later * 1000
        (offsets / str(batch)).write_text("\n".join([version, json.dumps(fields), *ends]))
        (offsets / f".{batch}.crc").unlink(missing_ok=True)
