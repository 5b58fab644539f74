"""A stream fed file by file, and a query whose output is collected batch by batch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from starrocks_txn_sink.clock import Clock
from tests.support.waiting import wait_until


class Feed:
    """Rows written as one JSON file each time; one file is one micro-batch, in the order of writing."""

    def __init__(self, spark: SparkSession, home: Path, schema: str) -> None:
        self._home, self._written = home / "feed", 0
        self._home.mkdir(parents=True)
        reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        self.frame: DataFrame = reader.json(str(self._home))

    def add(self, *rows: Mapping[str, Any]) -> None:
        self._written += 1
        partial_file = self._home / f"_{self._written}.json"
        partial_file.write_bytes(b"\n".join(map(orjson.dumps, rows)))
        os.utime(partial_file, (self._written, self._written))
        partial_file.rename(self._home / f"{self._written}.json")


class Collected:
    """A running query and the rows that it has put out so far."""

    def __init__(self, query: StreamingQuery, rows: list[tuple[Any, ...]], batches: list[int]) -> None:
        self.query, self._rows, self._batches = query, rows, batches

    def new(self) -> list[tuple[Any, ...]]:
        """Wait until all input is processed; the rows put out since the last call."""
        self.query.processAllAvailable()
        rows = self._rows[:]
        self._rows.clear()
        return rows

    def until(self, count: int) -> list[tuple[Any, ...]]:
        """Wait until so many rows have come, in micro-batches that are done.

        For queries that run a micro-batch at every trigger and so are never at rest.
        """
        wait_until(
            lambda: len(self._rows) >= count and self._done() >= self._batches[-1],
            reason=lambda: f"{len(self._rows)} of {count} rows came: {self.query.exception()}",
            alive=lambda: self.query.isActive,
        )
        rows = self._rows[:]
        self._rows.clear()
        return rows

    def _done(self) -> int:
        last = self.query.lastProgress
        return -1 if last is None else int(_as_dict(last)["batchId"])

    def observed(self, name: str, count: str) -> int:
        """The sum of a count over all micro-batches."""
        progress = [report["observedMetrics"].get(name) for report in map(_as_dict, self.query.recentProgress)]
        return sum(counts[count] for counts in progress if counts is not None)


def _as_dict(progress: Any) -> dict[str, Any]:
    report: dict[str, Any] = progress if isinstance(progress, dict) else orjson.loads(progress.json)  # Spark 3.5
    return report


@contextmanager
def running(frame: DataFrame, home: Path) -> Iterator[Collected]:
    """Start a query over `frame` and stop it in the end; rows are collected with NULL and all."""
    rows: list[tuple[Any, ...]] = []
    batches: list[int] = []  # those that had rows

    def collect(batch: DataFrame, batch_id: int) -> None:
        batch_rows = [tuple(row) for row in batch.collect()]
        batches.extend([batch_id] if batch_rows else [])
        rows.extend(batch_rows)

    writer = frame.writeStream.foreachBatch(collect).option("checkpointLocation", str(home / "checkpoint"))
    query = writer.start()
    try:
        yield Collected(query, rows, batches)
    finally:
        query.stop()


class FileTime:
    """Turns the hands of a clock that workers of another process read: its time is the content of a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.set(1_000_000.0)

    def set(self, seconds: float) -> None:
        self._now = seconds
        self._path.write_text(repr(seconds))

    def advance(self, minutes: float) -> None:
        self.set(self._now + minutes * 60)

    def clock(self) -> Clock:
        """A clock that Spark can ship: its class is local, so that it travels with its code."""
        path = str(self._path)

        class FileClock:
            def monotonic(self) -> float:
                return self.wall()

            def wall(self) -> float:
                with open(path) as file:  # noqa: PTH123 - no imports of the test's own module travel along
                    return float(file.read())

            def sleep(self, seconds: float) -> None:
                raise AssertionError(f"nobody sleeps here, not even {seconds} s")

        return FileClock()


def as_dicts(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(names, row, strict=True)) for row in rows]
