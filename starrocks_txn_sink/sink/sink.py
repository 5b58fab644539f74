"""StarRocksSink: give it to `foreachBatch`, or call `write` with a batch frame.

On the driver it checks the input, has the JVM project and spread it over the lanes, waits until every lane has
confirmed its StarRocks transactions, and only then returns: Spark's checkpoint never runs ahead of StarRocks.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame

from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.events import Event, Listener, nobody
from starrocks_txn_sink.lane.receipt import Receipt
from starrocks_txn_sink.lane.task import RECEIPT_SCHEMA, LaneTask
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.sink.preflight import table_models
from starrocks_txn_sink.sink.projection import lane_input
from starrocks_txn_sink.sink.table_route import TableRoute


class StarRocksSink:
    """Writes micro-batches of whole source transactions into StarRocks.

    `rows.writeStream.foreachBatch(StarRocksSink(options))`: input columns are source_partition (string or integer),
    position, seq (integers), table (string), transaction_end (boolean), `row` (a JSON object as a string) or the
    columns of `routes`, and, if present, op (upsert or delete) and database.

    `listener` is told `receipt.collected` (field `receipt`) for every committed StarRocks transaction and
    `batch.completed`, on the driver. Atomic per micro-batch with `lanes=1`, per source transaction with more.
    """

    def __init__(self, options: SinkOptions, *, routes: Sequence[TableRoute] = (), listener: Listener = nobody) -> None:
        self.options = options
        self.routes = tuple(routes)
        self._listener = listener
        self._models: dict[str, str] | None = None
        self._epoch = _new_epoch()
        self._writes = 0
        _refuse_double_routes(self.routes)

    def __getstate__(self) -> dict[str, Any]:
        """Spark Connect pickles the sink into a process of the server's; each process has an epoch of its own."""
        return {**self.__dict__, "_epoch": None, "_models": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._epoch = _new_epoch()

    def __repr__(self) -> str:
        return f"StarRocksSink({self.options!r})"

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write one micro-batch; returns when all of it is visible. For `foreachBatch`.

        Raises InputError for input that cannot be written, and lets whatever Spark raises through untouched, a stop of
        the query above all: a swallowed one would make Spark believe that the batch was written.
        """
        self._write(batch, batch_id, self._job(batch))

    def write(self, frame: DataFrame) -> list[Receipt]:
        """Write a batch frame, under the same guarantees, and return the receipts.

        A frame without source_partition, position, seq and transaction_end is one unit with `lanes=1`; with more lanes
        its rows are independent of each other.
        """
        self._writes += 1
        return self._write(frame, self._writes - 1, self._job(frame))

    def _write(self, frame: DataFrame, batch_id: int, job: str) -> list[Receipt]:
        started = time.monotonic()
        if self._models is None:
            self._models = table_models(self.options)
        lanes = lane_input(frame, self.options.database, self.options.lanes, self.routes, self._models)
        task = LaneTask(self.options, job, self._epoch, batch_id, lanes.marked)
        rows = lanes.rows.mapInArrow(task, RECEIPT_SCHEMA).collect()
        receipts = [Receipt.from_json(row[0]) for row in rows]
        for receipt in receipts:
            self._listener(Event("receipt.collected", {"receipt": receipt}))
        seconds = time.monotonic() - started
        self._listener(Event("batch.completed", {"batch_id": batch_id, "seconds": seconds, "receipts": len(receipts)}))
        return receipts

    def _job(self, frame: DataFrame) -> str:
        """The labels' first part: the option, or the streaming query's id, which survives restarts."""
        if self.options.job is not None:
            return self.options.job
        query = _query_id(frame)
        return f"query-{query}" if query else "write"


def _query_id(frame: DataFrame) -> str | None:
    """The id of the streaming query on this thread; None in a batch job and on Spark Connect."""
    context = getattr(frame.sparkSession, "_sc", None)
    return context.getLocalProperty("sql.streaming.queryId") if context is not None else None


def _new_epoch() -> str:
    """Tells runs of the driver apart: seconds since 1970 in hexadecimal, and 32 random bits."""
    return f"{int(time.time()):x}{secrets.token_hex(4)}"


def _refuse_double_routes(routes: tuple[TableRoute, ...]) -> None:
    tables = [route.table for route in routes]
    double = sorted({table for table in tables if tables.count(table) > 1})
    if double:
        raise OptionError(
            f"There is more than one TableRoute for {', '.join(double)}.", hint="Give each table one route."
        )
