"""The shop's folder with TxnEvents in it, and queries whose sink assembles them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import orjson
from pyspark.sql import DataFrame

from starrocks_txn_sink import Receipt, StarRocksSink, TransactionAssembly, TxnEventLines
from starrocks_txn_sink.sources import parse_txn_events
from tests.support.exactly_once_shop import Shop
from tests.support.servers import database_of

IN_JSON = TxnEventLines(source_partition=None, position=None)


def script(partition: str, text: str, first: int = 1, txn: str = "t") -> list[dict[str, Any]]:
    """`"B D D E"` as events at consecutive positions; `Ba` is a BEGIN of transaction a."""
    kinds = {"B": "BEGIN", "D": "DATA", "E": "END"}
    return [_event(partition, at, kinds[word[0]], word[1:] or txn) for at, word in enumerate(text.split(), first)]


def _event(partition: str, position: int, kind: str, txn: str) -> dict[str, Any]:
    event: dict[str, Any] = {"source_partition": partition, "position": position, "type": kind, "txn_id": txn}
    if kind == "DATA":
        row = {"part": partition, "position": position, "seq": 0, "note": txn}
        event |= {"database": "shop", "table": "items", "op": "c", "row": orjson.dumps(row).decode()}
    return event


class AssemblingShop(Shop):
    """`raw` gives the sink lines, else parsed events; `told` collects the events of the listener."""

    raw = True

    def put(self, *events: Iterable[dict[str, Any]]) -> Path:
        """One more file, which is one more micro-batch."""
        return self.put_lines([orjson.dumps(event) for transaction in events for event in transaction])

    def put_lines(self, lines: Sequence[bytes]) -> Path:
        self.files += 1
        file = self.source / f"{self.files}.json"
        database = f'"database":"{database_of(self.server)}"'.encode()
        file.write_bytes(b"\n".join(line.replace(b'"database":"shop"', database) for line in lines))
        os.utime(file, (self.files, self.files))
        return file

    def begin(
        self, checkpoint: str = "checkpoint", *, assembly: dict[str, Any] | None = None, **changes: Any
    ) -> tuple[Any, list[Receipt], list[Any]]:
        """Start a query over the folder, a file a micro-batch."""
        receipts: list[Receipt] = []
        events: list[Any] = []

        def listen(event: Any) -> None:
            (receipts.append(event.fields["receipt"]) if "receipt" in event.fields else events.append(event))

        settings = {"lines": IN_JSON} if self.raw else {}
        assemble = TransactionAssembly(**{**settings, **(assembly or {})})
        files = changes.pop("files", 1)
        sink = StarRocksSink(self.options(**changes), assemble=assemble, listener=listen)
        reader = self.spark.readStream.option("maxFilesPerTrigger", files)
        writer = self.events(reader).writeStream.foreachBatch(sink)
        writer = writer.option("checkpointLocation", str(self.checkpoint(checkpoint)))
        return writer.trigger(availableNow=True).start(), receipts, events

    def events(self, reader: Any) -> DataFrame:
        """The folder as the sink gets it; `reader` is a stream's or a batch's."""
        lines: DataFrame = reader.text(str(self.source))
        return lines if self.raw else parse_txn_events(lines, source_partition=None, position=None)

    def go(self, checkpoint: str = "checkpoint", **changes: Any) -> list[Receipt]:
        """Run a query until the folder is read."""
        query, receipts, _ = self.begin(checkpoint, **changes)
        assert query.awaitTermination(120)
        return receipts

    def state(self, folder: str) -> list[str]:
        return sorted(file.name for file in (self.checkpoint() / "starrocks_txn_sink" / folder).glob("[!.]*"))

    def notes(self) -> list[tuple[str, int]]:
        """Which rows are there."""
        return [(str(part), int(at)) for part, at in self.ask("SELECT part, position FROM shop.items ORDER BY 1, 2")]
