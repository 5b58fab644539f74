"""`lane_partitioned`: the layout of a frame as lanes, for the data source, and the terms that travel with the frame.

The JVM makes and checks the rows: one Spark partition a lane, sorted, each with a last row. The rows are numbered, so
that the data source notices later changes to the frame (`rows.segments`). Spark shows a data source only rows and
schema, so the terms travel as text in the metadata of one column; a password never travels with them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import orjson
from pyspark.sql import DataFrame, functions as F, types as T

from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.options import SinkOptions, TableOptions
from starrocks_txn_sink.options.combinations import Feature
from starrocks_txn_sink.options.without_effect import Circumstance, circumstances_of_rows
from starrocks_txn_sink.public_names import suggests_arguments
from starrocks_txn_sink.rows.columns import PAYLOAD, ROW_NUMBER
from starrocks_txn_sink.rows.keys import KeyColumn, TableKey
from starrocks_txn_sink.sink.lanes import LanePlan
from starrocks_txn_sink.sink.projection import UNFILLED_DELETES, has_unfilled_deletes, lane_input
from starrocks_txn_sink.sink.session import new_epoch
from starrocks_txn_sink.sink.typed.route import TIME_ZONE, TableRoute
from starrocks_txn_sink.sink.typed.tables import Tables
from starrocks_txn_sink.sink.typed.terms import TableTerms
from starrocks_txn_sink.spark_version import BATCH_DATA_SOURCE, require
from starrocks_txn_sink.sql.connection import LeaderConnection
from starrocks_txn_sink.telemetry import Event, EventLogger, LogSettings, executor_log_settings

require(BATCH_DATA_SOURCE)

METADATA_KEY = "starrocks_txn_sink.lanes"
_NOT_THE_SINKS = ("checkpointlocation", "path", "queryname", "batch_id")
"""Options of a write that are not the sink's: Spark adds the first three, also for `queryName(…)` and `start(path)`."""
_FIXED_OPTIONS = ("database", "lanes", "delivery", "on_bad_rows", "properties", "tables", "timestamp_zone")
"""Options that decided how the rows were made: they cannot change afterwards."""


@dataclass(frozen=True, slots=True)
class LaneTerms:
    """The terms of a frame that lane_partitioned made; `marked` and `keys` are as in `LaneTask`.

    `epoch` identifies the frame, and so the run of a query. `secret`: the options had a password, which is left out.
    `logging` has the log settings of the process that made the frame.
    """

    options: Mapping[str, Any]
    marked: bool
    epoch: str
    secret: bool = False
    logging: LogSettings | None = None
    keys: Mapping[str, TableKey] = field(default_factory=dict)

    @classmethod
    def of(cls, fitted: TableTerms, *, marked: bool, epoch: str, logging: LogSettings | None) -> LaneTerms:
        options = replace(fitted.options, lanes=fitted.options.lane_count)  # the frame has so many
        return cls(_plain(options), marked, epoch, bool(options.password), logging, fitted.keys)

    @property
    def metadata(self) -> dict[str, str]:
        """The terms as metadata of a column."""
        return {METADATA_KEY: orjson.dumps(self, _json, orjson.OPT_PASSTHROUGH_DATACLASS).decode()}

    @classmethod
    def within(cls, schema: T.StructType) -> LaneTerms:
        """The terms of a frame with `schema`; raises InputError when lane_partitioned did not make it."""
        texts = [field.metadata.get(METADATA_KEY) for field in schema.fields if field.name == PAYLOAD]
        if not texts or texts[0] is None:
            raise InputError(
                "The frame was not made by lane_partitioned: a data source cannot bring the rows of a source partition "
                "together in one task, nor in order, so it refuses any other frame.",
                hint='Write lane_partitioned(frame, options).write.format("starrocks_txn"), or use StarRocksSink.',
            )
        found = orjson.loads(texts[0])
        logging = found.pop("logging")
        keys = {table: [KeyColumn.from_json(**each) for each in key] for table, key in found.pop("keys").items()}
        return cls(**found, logging=None if logging is None else LogSettings(**logging), keys=keys)

    def sink_options(self, given: Mapping[str, str]) -> SinkOptions:
        """The frame's options, overridden by the data source's own options `given` as text.

        Raises OptionError for an option that is unknown, would change how the rows were made or does not work in a data
        source, and for a missing password.
        """
        own = {name: text for name, text in given.items() if name.lower() not in _NOT_THE_SINKS}
        values = SinkOptions.values_of(own)
        if self.secret and not values.keys() & {"password", "password_file", "password_environment"}:
            raise OptionError(
                "The password that lane_partitioned was given does not travel with the frame.",
                hint='Give it to the writer too, as .option("password", …), or use password_environment or '
                "password_file.",
                option="password",
            )
        options = SinkOptions(**{**self.options, **values})
        laid_down = SinkOptions(**self.options)
        for name in _FIXED_OPTIONS:
            if getattr(options, name) != getattr(laid_down, name):
                raise OptionError(
                    f"{name} cannot be changed after lane_partitioned: the rows were made with it.",
                    hint=f"Give {name} to lane_partitioned.",
                    option=name,
                )
        options.check_features(Feature.DATA_SOURCE)
        return options


def _plain(options: SinkOptions) -> dict[str, Any]:
    """All options that are set, without secrets."""
    values = {one.name: getattr(options, one.name) for one in fields(options) if one.repr}
    return {name: value for name, value in values.items() if value is not None}


def _json(value: Any) -> dict[str, Any]:
    if isinstance(value, TableOptions):
        return dict(value.properties)
    if isinstance(value, Mapping):
        return dict(value)
    return {one.name: getattr(value, one.name) for one in fields(value)}


STREAM_CHECK = "spark.sql.streaming.unsupportedOperationCheck"
_DEFAULT_CHECKPOINT = "spark.sql.streaming.checkpointLocation"


@suggests_arguments
def lane_partitioned(frame: DataFrame, options: SinkOptions, *, routes: Sequence[TableRoute] = ()) -> DataFrame:
    """Lay out a frame as `options.lanes` lanes, for the data source `starrocks_txn`.

    The checks are those of `StarRocksSink`, made now. With `query_url` they ask the server for its tables.

    Write the result unchanged: the data source detects changes and refuses them. For each start of a streaming query
    call the function again, because a frame counts as one run of it.

    Spark sorts a streaming frame within its micro-batches. It allows this only while
    `spark.sql.streaming.unsupportedOperationCheck` is off: switch the check off before this call, and on again after
    the query's start.

    Args:
        frame: The rows, as `StarRocksSink` takes them.
        options: The options of the sink. The writer's options win over most of them (docs/guides/data-source.md).
        routes: The typed columns of each table's rows, as in `StarRocksSink`.

    Returns:
        The frame for `.write` or `.writeStream` with `.format("starrocks_txn")`.

    Raises:
        InputError: The frame cannot be written.
        OptionError: Options conflict, or Spark's check is on for a streaming frame.
        QueryFailed: A query of the tables failed.
        QueryRefused: The server refused a query of the tables.

    Example::

        from starrocks_txn_sink import SinkOptions, StarRocksDataSource, lane_partitioned

        spark.dataSource.register(StarRocksDataSource)
        options = SinkOptions(load_url="http://fe:8030", query_url="mysql://fe:9030", database="shop", job="backfill")
        lane_partitioned(rows, options).write.format("starrocks_txn").mode("append").save()
    """
    options.check_features(Feature.DATA_SOURCE, Feature.ROUTES if routes else Feature.JSON_TEXTS)
    if frame.isStreaming and frame.sparkSession.conf.get(STREAM_CHECK) != "false":
        raise OptionError(
            "Lanes of a streaming frame are sorted within each micro-batch, and Spark refuses such a query while its "
            "check for unsupported operations is on.",
            hint=f'Call spark.conf.set("{STREAM_CHECK}", "false") before, and set it to "true" again after start(); or '
            "use foreachBatch(StarRocksSink(options)), which does not need this setting.",
        )
    if frame.isStreaming and frame.sparkSession.conf.get(_DEFAULT_CHECKPOINT, None):
        # streamWriter does not see a default checkpoint, so it cannot refuse a continuous trigger. Spark refuses this
        # expression under such a trigger.
        frame = frame.where(F.current_timestamp().isNotNull())
    if has_unfilled_deletes(frame, options):
        EventLogger("sink")(Event("deletes.unfilled", {"advice": UNFILLED_DELETES}))
    tables, zone = _tables(options, [route.table for route in routes]), str(frame.sparkSession.conf.get(TIME_ZONE))
    fitted = TableTerms.of(routes, frame.schema, zone, options, tables)
    lanes = lane_input(frame, fitted, name_task=options.exactly_once)
    of_rows = circumstances_of_rows(routed=bool(routes), positioned=lanes.marked)
    LanePlan(options.lane_count).warn_of_options("", options, Circumstance.DATA_SOURCE, *of_rows)
    terms = LaneTerms.of(fitted, marked=lanes.marked, epoch=new_epoch(), logging=executor_log_settings())
    rows = lanes.rows.withMetadata(PAYLOAD, terms.metadata)
    return rows.withColumn(ROW_NUMBER, F.monotonically_increasing_id())


def _tables(options: SinkOptions, names: Sequence[str]) -> Tables:
    if options.query_url is None:
        return Tables()
    deadline = Deadline.after(options.batch_deadline, SystemClock())
    with contextlib.closing(LeaderConnection(options)) as connection:
        return Tables.read(connection, options, names, deadline)
