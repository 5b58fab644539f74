"""An emulator with one DUPLICATE KEY table, a folder of events, and queries over it that can be run again and again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
from pyspark.sql import DataFrame, SparkSession

from starrocks_emulator.server import Emulator
from starrocks_txn_sink import Receipt, SinkOptions, StarRocksSink
from tests.support.query_port import query
from tests.support.servers import open_labels, place_of

NAMES = ("source_partition", "position", "seq", "table", "row", "transaction_end")
SCHEMA = "source_partition string, position long, seq long, table string, row string, transaction_end boolean"
OPERATIONS = ("begin", "load_probe", "load", "commit", "get_load_state", "rollback")


def rows_of(partition: str, positions: Sequence[int], note: str = "", size: int = 2) -> list[tuple[Any, ...]]:
    """Whole source transactions of `size` rows each."""
    return [
        (
            partition,
            position,
            seq,
            "items",
            orjson.dumps({"part": partition, "position": position, "seq": seq, "note": note}).decode(),
            seq == size - 1,
        )
        for position in positions
        for seq in range(size)
    ]


class Shop:
    """One emulator and one source folder; every file of it is a micro-batch, in the order they were added."""

    def __init__(self, spark: SparkSession | None, server: Emulator, folder: Path) -> None:
        self.session, self.server, self.folder = spark, server, folder
        self.source = folder / "source"
        self.source.mkdir()
        self.files = 0
        self.ask("CREATE DATABASE IF NOT EXISTS shop")
        self.ask(
            "CREATE TABLE shop.items (part VARCHAR(32), position BIGINT, seq INT, note VARCHAR(32))"
            " DUPLICATE KEY(part) DISTRIBUTED BY HASH(part)"
        )

    @property
    def spark(self) -> SparkSession:
        assert self.session is not None
        return self.session

    # --- the server ---

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        return query(self.server, sql)

    def written(self) -> tuple[int, int]:
        """Rows, and different rows: they are equal as long as nothing was written twice."""
        ((rows, different),) = self.ask(
            "SELECT count(*), count(DISTINCT concat(part, '/', position, '/', seq)) FROM shop.items"
        )
        return int(rows), int(different)

    def open_labels(self) -> list[str]:
        return open_labels(self.server, self.ask)

    def fault(self, *rules: dict[str, Any]) -> None:
        self.server.faults.replace({"rules": list(rules)})

    def count_requests(self) -> None:
        """From now on `requests` counts, by rules that do nothing."""
        self.fault(*({"operation": name, "action": "delay", "seconds": 0} for name in OPERATIONS))

    def requests(self) -> dict[str, int]:
        return {rule["operation"]: rule["matched"] for rule in self.server.faults.report()["rules"]}

    # --- queries ---

    def options(self, **changes: Any) -> SinkOptions:
        values = {**place_of(self.server)}
        return SinkOptions(**{**values, "job": "test", **changes})

    def feed(self, rows: Sequence[tuple[Any, ...]]) -> Path:
        self.files += 1
        return self.write_file(f"{self.files}.json", rows)

    def write_file(self, name: str, rows: Sequence[tuple[Any, ...]]) -> Path:
        file = self.source / name
        file.write_bytes(b"\n".join(orjson.dumps(dict(zip(NAMES, row, strict=True))) for row in rows))
        moment = int(file.stem)
        os.utime(file, (moment, moment))
        return file

    def checkpoint(self, name: str = "checkpoint") -> Path:
        return self.folder / name

    def start(
        self,
        checkpoint: str = "checkpoint",
        *,
        files: int | None = 1,
        plain: bool = False,
        forever: bool = False,
        **changes: Any,
    ) -> tuple[Any, list[Receipt]]:
        """Start a query over the folder, `files` files a micro-batch; its receipts arrive in the list."""
        receipts: list[Receipt] = []
        sink = StarRocksSink(
            self.options(**changes),
            listener=lambda event: receipts.append(event.fields["receipt"]) if "receipt" in event.fields else None,
        )
        reader = self.spark.readStream.schema(SCHEMA)
        if files is not None:
            reader = reader.option("maxFilesPerTrigger", files)
        rows = reader.json(str(self.source))
        if plain:
            rows = rows.select("table", "row")
        writer = rows.writeStream.foreachBatch(sink).option("checkpointLocation", str(self.checkpoint(checkpoint)))
        trigger: dict[str, Any] = {"processingTime": "100 milliseconds"} if forever else {"availableNow": True}
        return writer.trigger(**trigger).start(), receipts

    def run(self, checkpoint: str = "checkpoint", **changes: Any) -> list[Receipt]:
        """Run a query until the folder is read, and return its receipts."""
        query, receipts = self.start(checkpoint, **changes)
        assert query.awaitTermination(120)
        return receipts

    def frame(self, rows: Sequence[tuple[Any, ...]]) -> DataFrame:
        return self.spark.createDataFrame(list(rows), SCHEMA)

    # --- what happens to checkpoints ---

    def forget_commit(self, batch: int) -> None:
        """Delete the last entry of the commit log: Spark runs that micro-batch again."""
        for file in (self.checkpoint() / "commits").glob(f"*{batch}*"):
            file.unlink()

    def forget_batches(self) -> None:
        """Delete all but the metadata: the same query id, and micro-batch 0 again."""
        for name in ("offsets", "commits", "sources"):
            shutil.rmtree(self.checkpoint() / name)
