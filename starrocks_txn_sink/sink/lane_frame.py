"""A frame laid out as lanes, for the data source: `lane_partitioned`.

Spark gives a data source whatever partitions a frame has. What `StarRocksSink` does to a micro-batch before its lanes
run is therefore done by the user's plan: rows made and checked in the JVM, one Spark partition a lane, sorted, each
closed by a last row, and sealed (`lane.seal`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from starrocks_txn_sink import logs
from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.lane.seal import PLACE
from starrocks_txn_sink.lane.segments import PAYLOAD
from starrocks_txn_sink.ledger.access import LeaderConnection
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.sink.lane_terms import LaneTerms, refuse_what_it_lacks
from starrocks_txn_sink.sink.preflight import table_columns, table_models
from starrocks_txn_sink.sink.projection import lane_input
from starrocks_txn_sink.sink.session import new_epoch
from starrocks_txn_sink.sink.table_route import TableRoute
from starrocks_txn_sink.sink.typed import TargetColumn, typed_routes, with_columns

STREAM_CHECK = "spark.sql.streaming.unsupportedOperationCheck"


def lane_partitioned(frame: DataFrame, options: SinkOptions, *, routes: Sequence[TableRoute] = ()) -> DataFrame:
    """`frame` laid out as `options.lanes` lanes, for `.write` or `.writeStream` with `.format("starrocks_txn")`.

    `frame` and `routes` are those of `StarRocksSink`, and so are the checks, made now; with `query_url` the server is
    asked for its tables. Nothing may be done to the result but write it: the data source notices, and refuses. Call it
    anew for each start of a streaming query, because a frame counts as one run of it.

    A streaming frame is sorted within its micro-batches, which Spark allows only while
    `spark.sql.streaming.unsupportedOperationCheck` is off: from this call until the query was started.
    Raises InputError and OptionError, QueryFailed or QueryRefused when the server cannot be asked.
    """
    refuse_what_it_lacks(options)
    if not routes:
        options.check_untyped()
    if frame.isStreaming and frame.sparkSession.conf.get(STREAM_CHECK) != "false":
        raise OptionError(
            "Lanes of a streaming frame are sorted within each micro-batch, which Spark refuses to start as long as it "
            "checks for what it calls unsupported operations.",
            hint=f'Call spark.conf.set("{STREAM_CHECK}", "false") before, and set it to "true" again after start(); or '
            "use foreachBatch(StarRocksSink(options)), which needs no such thing.",
        )
    models, columns = _tables(options, [route.table for route in routes])
    typed = typed_routes(routes, frame, options, columns)
    options = with_columns(options, typed, strict=options.quarantines)
    lanes = lane_input(
        frame,
        options.database,
        options.lanes,
        typed,
        models,
        name_task=options.exactly_once,
        guarded=not options.quarantines,
    )
    terms = LaneTerms.of(options, marked=lanes.marked, epoch=new_epoch(), logging=logs.executor_log_settings())
    names = [F.col(name) for name in lanes.rows.columns if name != PAYLOAD]
    return lanes.rows.select(
        *names, F.col(PAYLOAD).alias(PAYLOAD, metadata=terms.metadata), F.monotonically_increasing_id().alias(PLACE)
    )


def _tables(
    options: SinkOptions, names: Sequence[str]
) -> tuple[dict[str, str], dict[str, tuple[TargetColumn, ...]] | None]:
    """The models of the database's tables and the columns of those with `names`, as far as the server can be asked."""
    if not options.query_addresses:
        return {}, None
    deadline = Deadline.after(options.batch_deadline, SystemClock())
    with contextlib.closing(LeaderConnection(options)) as connection:
        models = table_models(connection, options.database, deadline)
        return models, table_columns(connection, options.database, names, deadline)
