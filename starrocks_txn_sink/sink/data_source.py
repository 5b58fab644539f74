"""The data source: `.write` and `.writeStream` with `.format("starrocks_txn")`, over Spark's Python data source API.

The lanes are those of `StarRocksSink`. Spark gives a data source the partitions that a frame has, so the layout is part
of the user's plan: `lane_partitioned` makes and checks the rows in the JVM, one Spark partition a lane, sorted, each
with a last row. It numbers the rows, so that later changes to the frame show (`rows.segments`). The frame carries its
terms as text in the metadata of one column, because Spark shows a data source nothing else of a frame; a password never
travels with them. A batch frame without positions needs no layout (`sink.plain_frames`).

The driver's part runs in short-lived Python processes that Spark starts on the driver: one makes the writer before the
tasks of a write start, and one ends the write. No memory lasts between them, so every micro-batch takes the job over;
the frame's age decides between two runs (`refuse_newer`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql import types as T  # noqa: N812 - everybody's name for it

from starrocks_txn_sink.assembler.rules.spill import FileDirectory
from starrocks_txn_sink.clock import Deadline, SystemClock, microseconds
from starrocks_txn_sink.coordinator.model import Receipt
from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.options import SinkOptions, TableOptions
from starrocks_txn_sink.options.combinations import Feature
from starrocks_txn_sink.protocol.label import LabelPrefix
from starrocks_txn_sink.public_names import suggests_arguments
from starrocks_txn_sink.rows.columns import PAYLOAD, ROW_NUMBER
from starrocks_txn_sink.rows.keys import KeyColumn, TableKey
from starrocks_txn_sink.rows.segments import check_row_numbers
from starrocks_txn_sink.sink.checkpoint import FOLDER, Proof, ProofLog
from starrocks_txn_sink.sink.plain_frames import (
    ABORT_SECONDS,
    BATCH_ID,
    CommitMessages,
    LaneMessage,
    PlainFrameWriter,
    arrived,
    is_plain,
    log_messages,
)
from starrocks_txn_sink.sink.projection import UNFILLED_DELETES, has_unfilled_deletes, lane_input
from starrocks_txn_sink.sink.session import (
    FROM_THE_BEGINNING,
    Session,
    job_of_frame,
    new_epoch,
    open_session,
    roll_back_until,
    see_query,
)
from starrocks_txn_sink.sink.typed.route import TIME_ZONE, TableRoute, TableTerms
from starrocks_txn_sink.sink.typed.target import Tables
from starrocks_txn_sink.spark_version import BATCH_DATA_SOURCE, STREAM_DATA_SOURCE, require
from starrocks_txn_sink.sql.connection import LeaderConnection
from starrocks_txn_sink.telemetry import Event, EventLogger, LogSettings, executor_log_settings
from starrocks_txn_sink.writer.messages import LaneReport, of_kind
from starrocks_txn_sink.writer.task import LaneTask, LaneTry
from starrocks_txn_sink.writer.worker import Attempt

try:
    from pyspark.sql import datasource
except ImportError:
    require(BATCH_DATA_SOURCE)
    raise

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamArrowWriter
else:
    StreamArrowWriter = getattr(datasource, "DataSourceStreamArrowWriter", object)  # STREAM_DATA_SOURCE

METADATA_KEY = "starrocks_txn_sink.lanes"
_SPARKS_OWN = ("checkpointlocation", "path", "batch_id")
_FIXED_OPTIONS = ("database", "lanes", "delivery", "on_bad_rows", "properties", "tables", "timestamp_zone")
"""Options that decided how the rows were made: they cannot change afterwards."""


@dataclass(frozen=True, slots=True)
class LaneTerms:
    """The terms of a frame that lane_partitioned made. `marked` as in `LaneTask`; `epoch` identifies the frame, and so
    the run of a query; with `secret` the options had a password, which is left out; `logging` has the log settings of
    the process that made the frame; `keys` has the tables' primary keys, as in `LaneTask`."""

    options: Mapping[str, Any]
    marked: bool
    epoch: str
    secret: bool = False
    logging: LogSettings | None = None
    keys: Mapping[str, TableKey] = field(default_factory=dict)

    @classmethod
    def of(cls, fitted: TableTerms, *, marked: bool, epoch: str, logging: LogSettings | None) -> LaneTerms:
        options = replace(fitted.options, lanes=fitted.options.lane_count)  # how many the frame has
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
        own = {name: text for name, text in given.items() if name.lower() not in _SPARKS_OWN}
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
    """All options that are set and are no secret."""
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
        # streamWriter will not see the checkpoint. This is what Spark refuses under a continuous trigger.
        frame = frame.where(F.current_timestamp().isNotNull())
    if has_unfilled_deletes(frame, options):
        EventLogger("sink")(Event("deletes.unfilled", {"advice": UNFILLED_DELETES}))
    tables, zone = _tables(options, [route.table for route in routes]), str(frame.sparkSession.conf.get(TIME_ZONE))
    fitted = TableTerms.of(routes, frame.schema, zone, options, tables)
    lanes = lane_input(frame, fitted, name_task=options.exactly_once)
    terms = LaneTerms.of(fitted, marked=lanes.marked, epoch=new_epoch(), logging=executor_log_settings())
    rows = lanes.rows.withMetadata(PAYLOAD, terms.metadata)
    return rows.withColumn(ROW_NUMBER, F.monotonically_increasing_id())


def _tables(options: SinkOptions, names: Sequence[str]) -> Tables:
    if options.query_url is None:
        return Tables()
    deadline = Deadline.after(options.batch_deadline, SystemClock())
    with contextlib.closing(LeaderConnection(options)) as connection:
        return Tables.read(connection, options, names, deadline)


FORMAT = "starrocks_txn"
_PROOF_SECONDS = 10.0
_CHECKPOINT = "checkpointLocation"
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"  # local properties of a micro-batch's tasks


@dataclass(frozen=True)
class LaneWrite:
    """One write over all lanes; made on the driver before the tasks start, and pickled into them."""

    task: LaneTask
    before: Proof | None = None

    def run(self, batches: Iterator[pa.RecordBatch], task: LaneTask) -> LaneMessage:
        """Write the rows of this task's lane. Raises InputError for rows that changed since their layout."""
        attempt = Attempt.current()
        rows = check_row_numbers(batches, attempt.lane)
        messages = LaneTry(task, attempt, SystemClock()).run(rows)
        return LaneMessage(attempt.lane, tuple(messages), self.before if attempt.lane == 0 else None)

    def finish(self, messages: CommitMessages) -> None:
        """Check that every lane has sent its message, and log receipts and warnings. Raises InputError."""
        lanes, sent = arrived(messages)
        if sorted(each.lane for each in lanes) != list(range(self.task.options.lane_count)):
            raise InputError(
                f"{len(lanes)} of {self.task.options.lane_count} lanes were written: the frame has other partitions "
                "than lane_partitioned made.",
                hint="Make lane_partitioned the last step before the write. What was written stays, and is not written "
                "a second time.",
            )
        log_messages(self.task, sent)

    def abort(self, *_: object) -> None:
        """Roll back the tasks' open labels, and labels that they begin while Spark ends them."""
        roll_back_until(self.task.options, LabelPrefix(self.task.job, self.task.epoch), ABORT_SECONDS)


class StarRocksDataSource(datasource.DataSource):
    """The data source `starrocks_txn`: appends rows that `lane_partitioned` has laid out, and batch frames as they are.

    Register it once a session. A frame as it is has no source transactions: typed columns of the table that the option
    `table` names, or the columns `table` and `row`. All of it becomes visible at once, or nothing. Never overwrites.

    Args:
        options: The writer's options: those of `SinkOptions`, as text, which win over the options of
            `lane_partitioned`. A batch write of its frames also takes `batch_id`, as `StarRocksSink.write` does.

    Example::

        spark.dataSource.register(StarRocksDataSource)
        frame.write.format("starrocks_txn").options(**addresses).option("table", "orders").mode("append").save()
        lane_partitioned(rows, options).write.format("starrocks_txn").mode("append").save()
    """

    _unpickled = False  # then it serves the end of a write, whose writer exists already

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _unpickled=True)

    def writer(self, schema: T.StructType, overwrite: bool) -> StarRocksWriter | PlainFrameWriter:
        """For `.write`: takes the job over, or begins the label of a frame as it is, before the tasks start."""
        given = {name.lower(): text for name, text in self.options.items() if name.lower() != "path"}
        if not overwrite and is_plain(schema, given):
            return PlainFrameWriter.begin(schema, given)
        options, terms = self._read_terms(schema, overwrite)
        job = job_of_frame(options, positioned=terms.marked)
        session = open_session(options, f"write-{job}", job, f"write-{job}")
        number = _batch_id(self.options.get(BATCH_ID))
        task = _lane_task(session, options, terms, asks=True)
        task = replace(task, batch_id=microseconds() if number is None else number, streaming=False)
        return StarRocksWriter(task)

    def streamWriter(self, schema: T.StructType, overwrite: bool) -> StarRocksStreamWriter:  # noqa: N802 - Spark's name
        """For `.writeStream`, called for each micro-batch: takes the job over before its tasks start.

        Raises LedgerBehind when the ledger knows less than the query's checkpoint, and OptionError for a query without
        micro-batches, as far as the checkpoint can be read here.
        """
        require(STREAM_DATA_SOURCE)
        options, terms = self._read_terms(schema, overwrite)
        if options.job is None:
            raise OptionError(
                "`job` is not set, and a data source cannot see the id of the query that it writes for.",
                hint="Set `job` to a name that stays the same over restarts and that no other query uses.",
                option="job",
            )
        location = self.options.get(_CHECKPOINT, "").rstrip("/") if options.exactly_once else ""
        proofs = FileDirectory(f"{location}/{FOLDER}") if location else None
        if self._unpickled:
            task = LaneTask(options, options.job, terms.epoch, "", 0, terms.marked, logging=terms.logging)
            return StarRocksStreamWriter(task, proofs=proofs)
        seen = see_query(FileDirectory(location), ProofLog(proofs, terms.epoch)) if proofs is not None else None
        if seen is not None and not seen.in_batch:
            raise OptionError(
                "The query has a continuous trigger, so it has no micro-batches, and nothing could be exactly once.",
                hint="Set another trigger: processingTime, availableNow or once.",
            )
        checkpoint = seen.query if seen is not None else f"{FORMAT}-{options.job}"
        resumption = seen.resumption if seen is not None else FROM_THE_BEGINNING
        session = open_session(
            options, checkpoint, options.job, checkpoint, run_epoch=terms.epoch, resumption=resumption
        )
        task = _lane_task(session, options, terms, asks=seen is not None and seen.begins)
        before = session.proof(resumption.batch - 1) if seen is not None else None
        return StarRocksStreamWriter(task, before, proofs)

    def _read_terms(self, schema: T.StructType, overwrite: bool) -> tuple[SinkOptions, LaneTerms]:
        if overwrite:
            raise OptionError(
                "The sink appends changes to tables; it never empties one.",
                hint='Use .mode("append"), and .outputMode("append") for a stream.',
            )
        terms = LaneTerms.within(schema)
        return terms.sink_options(dict(self.options)), terms


def _lane_task(session: Session, options: SinkOptions, terms: LaneTerms, *, asks: bool) -> LaneTask:
    """The task of a write's lanes, which have no micro-batch yet, after the take-over.

    With `asks` the lanes ask what is asked once a run: whether their labels are listed, and whether names are columns.
    """
    session.canary = asks
    task = session.lane_task(options, 0, marked=terms.marked, keys=terms.keys, logging=terms.logging)
    return task if asks else replace(task, compared=None)


@dataclass(frozen=True)
class StarRocksWriter(LaneWrite, datasource.DataSourceArrowWriter):
    """Writes one batch frame."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> LaneMessage:
        return self.run(iterator, self.task)

    def commit(self, messages: list[datasource.WriterCommitMessage | None]) -> None:
        self.finish(messages)


@dataclass(frozen=True)
class StarRocksStreamWriter(LaneWrite, StreamArrowWriter):
    """Writes one micro-batch; its proof goes into the directory `proofs`, next to Spark's logs."""

    proofs: FileDirectory | None = None

    def write(self, iterator: Iterator[pa.RecordBatch]) -> LaneMessage:
        context = TaskContext.get()
        query, batch = (context.getLocalProperty(name) if context is not None else None for name in (_QUERY, _BATCH))
        if query is None or batch is None:
            raise InputError(
                "The task does not know its streaming query and micro-batch, so a replay would not be noticed.",
                hint="Use foreachBatch(StarRocksSink(options)) with this version of Spark.",
            )
        return self.run(iterator, replace(self.task, checkpoint=query, batch_id=int(batch)))

    def commit(self, messages: list[datasource.WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self.finish(messages)
        lanes, sent = arrived(messages)
        before = next((each.before for each in lanes if each.before is not None), None)
        if before is None or self.proofs is None:
            return
        receipts = of_kind(sent, Receipt)
        proof = before.advanced(batchId, receipts, of_kind(sent, LaneReport))
        if receipts or proof.skips:  # no proof without news: this run's first one says that its lanes have asked
            ProofLog(self.proofs, self.task.epoch).record_within(proof, _PROOF_SECONDS)


def _batch_id(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.strip().isdigit():
        raise OptionError(f"batch_id is {text[:40]!r}, not a whole number.", hint="Number the frames.", option=BATCH_ID)
    return int(text)
