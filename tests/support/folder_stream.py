"""A stateful stage in a stream: micro-batches from files into a list."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from typing_extensions import Self


class FolderStream:
    """One file is one micro-batch. A context manager, which stops the queries."""

    def __init__(self, spark: SparkSession, home: Path) -> None:
        self.spark, self.home = spark, home
        self.folder = home / "events"
        self.folder.mkdir()
        self.files = 0
        self.out: list[Row] = []
        self.queries: list[StreamingQuery] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for query in self.queries:
            query.stop()

    def run(self, rows: DataFrame, *, available_now: bool) -> StreamingQuery:
        """Start a query of the stage's `rows`, with the one checkpoint."""
        writer = rows.writeStream.foreachBatch(self.take).option("checkpointLocation", str(self.home / "checkpoint"))
        self.queries.append((writer.trigger(availableNow=True) if available_now else writer).start())
        return self.queries[-1]

    def take(self, rows: DataFrame, _: int) -> None:
        self.out += rows.mapInArrow(lambda batches: batches, rows.schema).collect()

    def put_lines(self, values: Iterable[Any]) -> None:
        """A file with the JSON of the values, which the stream sees whole."""
        self.files += 1
        partial_file = self.folder / f".{self.files}.json"
        partial_file.write_text("\n".join(map(json.dumps, values)))
        partial_file.rename(self.folder / f"{self.files}.json")
