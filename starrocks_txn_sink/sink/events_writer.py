"""Raw events in the sink: `TransactionAssembly`, their projection in the JVM, and `EventsWriter`, which runs the lanes.

Only the open tail of each source partition goes on to the next micro-batch, as files that are written once and a
manifest for each micro-batch (`sink.manifest_log`). Several lanes always sort events first; one lane takes them in
arrival order and checks the order (`writer.assembling`).
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from heapq import nsmallest
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from starrocks_txn_sink.assembler.rules.incremental import expire
from starrocks_txn_sink.assembler.rules.model import MissingBegin, OnOpenTimeout, Policy, seconds
from starrocks_txn_sink.assembler.rules.spill import FOLDER as ROWS
from starrocks_txn_sink.assembler.rules.spill import CarriedState, Manifest, missing_rows
from starrocks_txn_sink.assembler.spark import event_columns
from starrocks_txn_sink.clock import SystemClock
from starrocks_txn_sink.coordinator.model import Receipt
from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.combinations import always_sorted
from starrocks_txn_sink.protocol.ledger import Owner, check_owner
from starrocks_txn_sink.public_names import suggests_arguments
from starrocks_txn_sink.rows.arrival import SMALL_ROWS
from starrocks_txn_sink.rows.columns import EVENT_TIME
from starrocks_txn_sink.sink import projection
from starrocks_txn_sink.sink.checkpoint import HadoopDirectory, query_directory
from starrocks_txn_sink.sink.lanes import LanePlan, refuse_own_labels, run_shared
from starrocks_txn_sink.sink.manifest_log import ManifestLog
from starrocks_txn_sink.sink.session import Session, run_once
from starrocks_txn_sink.sink.typed.terms import TableTerms
from starrocks_txn_sink.sources.kafka.options import SPARK_READS
from starrocks_txn_sink.sources.kafka.spark_reader import KafkaSource, PlannedRanges
from starrocks_txn_sink.sources.txn_event import named_column, parse_lines
from starrocks_txn_sink.sources.txn_lines import POSITION, SOURCE_PARTITION, VALUE, TxnEventLines
from starrocks_txn_sink.telemetry import Event, Listener, get_logger
from starrocks_txn_sink.writer.assembling import AssemblingLaneTask, AssemblySpec
from starrocks_txn_sink.writer.messages import CarryOver, LaneReport, Message, decode, of_kind, why_to_sort
from starrocks_txn_sink.writer.task import LaneTask


@suggests_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionAssembly:
    """Rules by which the lanes of a sink make whole source transactions of raw events.

    The rules are those of `assemble_transactions`. The events have the columns that it reads, or they are raw JSON in
    one column, as `lines` describes.

    `SinkOptions.shuffle` says how events come to their lane:

    - `"auto"`: with one lane, events come as they are, in one task; Spark sorts them first once a source partition's
      events turn out to be out of order. With more lanes Spark always sorts them, unless the lanes share one StarRocks
      transaction.
    - `True`: Spark always sorts them.
    - `False` (not with several lanes that have StarRocks transactions of their own): Spark never sorts them. Events out
      of order are an error, before anything is committed.

    Small micro-batches (100 000 events, 32 MB) may be in any order.

    Args:
        by: The column with the source partition (string or integer).
        interleaved: Whether a source partition has several open transactions, one per txn_id, or one.
        open_timeout: The longest time that a transaction may be open, in processing time: seconds, a timedelta or text
            like `10 min`; None sets no limit. The sink checks it when a micro-batch runs; Spark runs none while no
            event comes.
        on_open_timeout: `fail` the query at a transaction that is open for longer, or `drop` the transaction.
        missing_begin: `fail` the query at events whose BEGIN was never seen, or `drop` or `accept` them.
        lines: The columns of raw JSON events; None for parsed events.
        state_dir: The folder in which open source transactions wait: a path or URI that driver and executors share. By
            default they wait in the query's checkpoint, so that a copy of the checkpoint has both.

    Raises:
        OptionError: A value cannot work.

    Example::

        from starrocks_txn_sink import StarRocksSink, TransactionAssembly, TxnEventLines

        assembly = TransactionAssembly(lines=TxnEventLines(), open_timeout="10 min")
        sink = StarRocksSink(options, assemble=assembly)
        query = topic.writeStream.foreachBatch(sink).option("checkpointLocation", "/data/checkpoint").start()
    """

    by: str = "source_partition"
    interleaved: bool = False
    open_timeout: float | timedelta | str | None = None
    on_open_timeout: OnOpenTimeout = "fail"
    missing_begin: MissingBegin = "fail"
    lines: TxnEventLines | None = None
    state_dir: str | None = None

    def __post_init__(self) -> None:
        _ = self.policy
        if self.state_dir is not None and not re.match(r"([A-Za-z][\w+.-]*:)?/", self.state_dir):
            raise OptionError(
                f"state_dir is {self.state_dir!r}, which means another folder in each process.",
                hint="Give an absolute path, or a URI such as s3a://bucket/folder, that driver and executors share.",
                option="state_dir",
            )

    @property
    def reads_kafka(self) -> bool:
        """Whether the lanes read Kafka themselves."""
        return self.lines is not None and self.lines.reader == "librdkafka"

    @property
    def policy(self) -> Policy:
        return Policy(self.interleaved, seconds(self.open_timeout), self.on_open_timeout, self.missing_begin)


def _event_columns(frame: DataFrame, by: str) -> list[Column]:
    partition, *others = event_columns(frame, by)
    return [partition.cast("string").alias(SOURCE_PARTITION), *others, *projection.event_time(frame)]


def _raw_columns(frame: DataFrame, lines: TxnEventLines) -> list[Column]:
    wanted = [each for each in (lines.value, lines.source_partition, lines.position) if each]
    missing = [each for each in wanted if each not in frame.columns]
    if missing:
        raise InputError(
            f"The frame lacks the column {', '.join(missing)}.",
            hint=f"It has {', '.join(frame.columns)}; name one of these, or None if the JSON itself has the value.",
        )
    if not isinstance(frame.schema[lines.value].dataType, (T.StringType, T.BinaryType)):
        raise InputError(
            f"The column {lines.value} is {frame.schema[lines.value].dataType.simpleString()}, not string or binary.",
            hint="Name the column that holds the JSON, or leave `lines` out for events that are parsed already.",
        )
    return [
        _place(lines.source_partition, "string").alias(SOURCE_PARTITION),
        _place(lines.position, "bigint").alias(POSITION),
        named_column(lines.value).alias(VALUE),
        *projection.event_time(frame),
    ]


def _place(name: str | None, kind: str) -> Column:
    return (named_column(name) if name else F.lit(None)).cast(kind)


RELAY_LIMIT: Final = 128 << 20  # bytes: the driver holds them, and each micro-batch brings them to the lanes
STAGE: Final = "lanes"  # the assembler's name in metrics, in place of a stage's own name
OLDEST_LIMIT: Final = 20  # open source transactions that an event lists one by one
_LANE_BYTES: Final = 4 << 20
"""Payload that is worth a lane of its own.

One more lane costs a job about 50 ms, in which a lane writes this much, and 2 CPU seconds once, for its process.
"""
_MESSAGES: Final = T.StructType([T.StructField("message", T.StringType())])  # `messages.MESSAGES`, parsed
_RETAIN: Final = "spark.sql.streaming.minBatchesToRetain"

_log = get_logger("assembler")


@dataclass(frozen=True, slots=True)
class _SchemaColumns:
    """The parts of the projection that frames of one schema share: columns, and the last rows of the lanes."""

    schema: T.StructType
    columns: list[Column]
    ends: DataFrame


@dataclass(slots=True)
class EventsWriter:
    """Runs the micro-batches of one session; without a log each frame is independent (`StarRocksSink.write`).

    The first frame decides the `plan`, and at first whether events are sorted.
    """

    assembly: TransactionAssembly
    session: Session
    terms: TableTerms
    log: ManifestLog | None = None
    plan: LanePlan | None = None
    sort: bool = False
    _relay: dict[str, bytes] = field(default_factory=dict)  # the files of open rows that the driver brings to lanes
    _kafka: KafkaSource | None = None
    _row_bytes: float = 200.0  # of the last micro-batch; a guess for the first one
    _kept: dict[bool, _SchemaColumns] = field(default_factory=dict)  # by whether events are sorted

    @classmethod
    def open(
        cls, assembly: TransactionAssembly, options: SinkOptions, session: Session, frame: DataFrame, query: str | None
    ) -> EventsWriter:
        """A writer for a streaming query (`query` is its id, or its job if the id is hidden), or for a frame (None)."""
        terms = TableTerms.of((), frame.schema, "", options, session.tables)
        if query is None:
            return cls(assembly, session, terms)
        directory = query_directory(frame, assembly.state_dir, query)
        if directory is None:
            raise OptionError(
                "The sink cannot see the query's checkpoint location.",
                hint="Give TransactionAssembly a state_dir that driver and executors share; keep it with the "
                "checkpoint.",
                option="state_dir",
            )
        keep = int(str(frame.sparkSession.conf.get(_RETAIN, "100")))
        return cls(assembly, session, terms, ManifestLog.open(directory, session.epoch, query, keep))

    def write(self, frame: DataFrame, task: LaneTask, listener: Listener) -> tuple[list[Receipt], list[LaneReport]]:
        """Write one micro-batch of events."""
        before, now = Manifest(), SystemClock().wall()
        if self.log is not None:
            before = self.log.before(task.batch_id, may_begin=self.assembly.missing_begin == "fail")
        messages = self._lanes(frame, task, before, now)
        receipts = of_kind(messages, Receipt)
        regions = [region for each in receipts for region in each.regions]
        if rows := sum(region.rows for region in regions):
            self._row_bytes = sum(region.bytes for region in regions) / rows
        self._conclude(task, before, of_kind(messages, CarryOver), now, bool(receipts), listener)
        return receipts, of_kind(messages, LaneReport)

    def _lanes(self, frame: DataFrame, task: LaneTask, before: Manifest, now: float) -> list[Message]:
        plan = self.plan
        if plan is None:
            plan = self.plan = LanePlan.of(frame, task.options, positioned=True, direct=self.assembly.reads_kafka)
            self.sort = _sorted_first(task.options, plan)
        messages = self._run(frame, task, plan, before, now)
        why = why_to_sort(messages, task.options, "events")
        if why is None:
            small = all(each.small for each in of_kind(messages, CarryOver))  # then the next one may be, too
            self.sort = _sorted_first(task.options, plan) or (self.sort and not small)
            return messages
        if plan.shared:
            refuse_own_labels(task.options, why)
            plan = self.plan = LanePlan(task.options.lane_count)
        _log.warning("events.sorted", why=why)
        self.sort = True
        return self._run(frame, task, plan, before, now)

    def _run(self, frame: DataFrame, task: LaneTask, plan: LanePlan, before: Manifest, now: float) -> list[Message]:
        planned = self._plan_kafka(frame, task, plan)
        ranges = planned.lanes if planned is not None else ()
        if ranges:
            rows, lines = frame.sparkSession.range(0, len(ranges), 1, len(ranges)), self.assembly.lines
        else:
            rows, lines = self._project(frame, task, plan)
        relayed = self.log is not None and isinstance(self.log.directory, HadoopDirectory)
        assembly = AssemblySpec(
            policy=self.assembly.policy,
            content=self.terms.encoder,
            now=now,
            directory=self.log.directory if self.log is not None and not relayed else None,
            stem=self.log.stem(task.batch_id) if self.log is not None else "frame",
            carried=before.partitions,
            inline=self._contents(before) if relayed else before.inline,
            relayed=relayed,
            lines=lines,
            arrival_order=not self.sort,
            sortable=task.options.shuffle is not False and not ranges,
            small_rows=SMALL_ROWS,
            sentinel=not plan.shared,
            marker=self.log.marker if self.log is not None else "",
            ranges=ranges,
        )
        task = replace(task, at_end_only=not self.sort, keys=self.terms.keys, whole=bool(ranges))

        def run_lanes(task: LaneTask) -> list[Message]:
            return [decode(row[0]) for row in rows.mapInArrow(AssemblingLaneTask(task, assembly), _MESSAGES).collect()]

        messages = run_shared(task, run_lanes) if plan.shared else run_lanes(task)
        if planned is not None and ranges:
            planned.count(sum(each.flows.events + each.malformed for each in of_kind(messages, CarryOver)))
        return messages

    def _plan_kafka(self, frame: DataFrame, task: LaneTask, plan: LanePlan) -> PlannedRanges | None:
        """The offsets that the lanes read themselves; None where Spark reads."""
        lines = self.assembly.lines
        if lines is None or not self.assembly.reads_kafka or self.sort:
            return None
        if self.log is None:
            raise OptionError('reader="librdkafka" needs a streaming query.', hint=SPARK_READS, option="reader")
        if self._kafka is None:
            columns = {lines.value: "value", str(lines.source_partition): "partition", str(lines.position): "offset"}
            columns |= {EVENT_TIME: "timestamp"} if projection.event_time(frame) else {}
            self._kafka = KafkaSource.of(frame, task.checkpoint, columns)
        if self._kafka is None:
            return None
        least = 1 if task.options.lanes is not None else round(_LANE_BYTES / self._row_bytes)
        return self._kafka.plan(frame, plan.lanes, max(1, least))

    def _contents(self, before: Manifest) -> dict[str, bytes]:
        """Every file of open rows that `before` names; from the checkpoint only after a restart."""
        known = {**before.inline, **self._relay}
        if self.log is not None:
            for name in before.files() - known.keys():
                try:
                    with self.log.directory.open(f"{ROWS}/{name}") as file:
                        known[name] = file.read()
                except FileNotFoundError:
                    raise missing_rows(name) from None
        self._relay = {name: known[name] for name in before.files()}
        return self._relay

    def _keep_relayed(self, after: Manifest, inline: Iterable[tuple[str, bytes]]) -> None:
        """Keep the files of `after` for the next micro-batch. Raises OptionError for more than RELAY_LIMIT."""
        known = {**self._relay, **dict(inline)}
        self._relay = {name: known[name] for name in after.files()}
        size = sum(map(len, self._relay.values()))
        if size > RELAY_LIMIT:
            raise OptionError(
                f"The open source transactions have {size >> 20} MiB, and the checkpoint is on a file system that only "
                f"the driver reaches: more than {RELAY_LIMIT >> 20} MiB do not go through it. Nothing is lost.",
                hint="Set state_dir of TransactionAssembly to a folder that Python on driver and executors can write, "
                "and copy the content of the checkpoint's folder starrocks_txn_sink into its new folder "
                f"{after.query} (docs/guides/deploy.md, The checkpoint).",
                option="state_dir",
            )

    def _project(self, frame: DataFrame, task: LaneTask, plan: LanePlan) -> tuple[DataFrame, TxnEventLines | None]:
        """The events of `frame` for the lanes, sorted or in arrival order, one Spark partition each; and how the lanes
        parse them, None if they are parsed already.

        A sort needs source partition and position: if only the JSON has them, the raw values are parsed before it. Each
        call of the JVM's planner costs milliseconds, in a small micro-batch more than the rows. So there are few calls,
        and the parts that frames of one schema share are kept. Raises InputError for missing columns or wrong types.
        """
        lines, lanes, name_task = self.assembly.lines, plan.lanes, task.ownership is not None
        if lines is not None and self.sort and not lines.placed:
            keep = (EVENT_TIME,) if projection.event_time(frame) else ()
            frame, lines = parse_lines(frame, lines, keep, "parse_txn_events"), None
        if self.log is None:  # independent frames may be of any Spark session
            self._kept.clear()
        kept = self._kept.get(self.sort)
        if kept is None or kept.schema != frame.schema:
            kept = self._kept[self.sort] = self._prepare(frame, lines, lanes, name_task)
        rows = frame.select(*kept.columns)
        if plan.shared:
            return rows.coalesce(lanes), lines
        if not self.sort:
            return projection.in_arrival_order(rows, kept.ends), lines
        order = [F.col(SOURCE_PARTITION).asc_nulls_last(), F.col(POSITION)]
        return projection.sorted_lanes(rows, kept.ends, lanes, order, name_task), lines

    def _prepare(self, frame: DataFrame, lines: TxnEventLines | None, lanes: int, name_task: bool) -> _SchemaColumns:
        if lines is not None:
            columns = _raw_columns(frame, lines)
        else:
            columns = _event_columns(frame, SOURCE_PARTITION if self.assembly.lines else self.assembly.by)
        if self.sort:
            columns.append(projection.lane_of(columns[0], lanes).alias(projection.LANE))
        session, schema = frame.sparkSession, frame.select(*columns).schema
        ends = projection.lane_ends(session, schema, lanes, POSITION, name_task=name_task and not self.sort)
        return _SchemaColumns(frame.schema, columns, ends)

    def _conclude(
        self,
        task: LaneTask,
        before: Manifest,
        carried: Sequence[CarryOver],
        now: float,
        committed: bool,
        listener: Listener,
    ) -> None:
        touched = _merge_partitions(carried)
        inline = [item for each in carried for item in each.inline.items()]
        after = before.updated(task.batch_id, self.log.query if self.log is not None else "", touched, inline)
        late, flows, notices = expire(self.assembly.policy, after.partitions, now)
        after = after.updated(after.batch, after.query, late, ())
        if self.log is not None:
            if not committed:  # no lane has checked the owner, and a fenced run must not publish
                check_still_owner(task.options, self.session)
            if isinstance(self.log.directory, HadoopDirectory):
                self._keep_relayed(after, inline)
            self.log.publish(after)
        counters = sum((flows, *(each.flows for each in carried)), after.levels())
        for notice in (*(notice for each in carried for notice in each.notices), *notices):
            _log.warning(notice.name, **notice.fields)
            listener(notice)
        oldest = min((each.opened_at for one in after.partitions.values() for each in one.state.live()), default=0.0)
        malformed = sum(each.malformed for each in carried)
        if malformed:
            _log.warning("events.malformed", count=malformed, batch=task.batch_id)
        counts = {**counters.as_dict(), "oldest_open": oldest, "malformed": malformed}
        query = task.checkpoint
        fields = {"query": query, "name": f"{query}/{STAGE}", "counts": counts, "oldest": _oldest_open(after)}
        listener(Event("assembler.counted", fields))


def check_still_owner(options: SinkOptions, session: Session) -> None:
    """Check the owner in the ledger; raises Fenced when another run of the query has taken the job over."""
    if session.token:
        owner = Owner("", session.epoch, session.checkpoint)
        run_once(options, check_owner(session.job, owner, session.token, random.Random()), options.batch_deadline)


def _sorted_first(options: SinkOptions, plan: LanePlan) -> bool:
    """Whether events are sorted before any lane reads them."""
    if plan.shared:
        return False
    return options.shuffle is True or options.lane_count > 1 or always_sorted(options.features, assembled=True)


def _merge_partitions(carried: Sequence[CarryOver]) -> dict[str, CarriedState]:
    touched: dict[str, CarriedState] = {}
    for each in carried:
        twice = touched.keys() & each.partitions.keys()
        if twice:
            raise InputError(f"Two lanes had events of source partition {min(twice)}: this is a bug, please report it.")
        touched.update(each.partitions)
    return touched


def _oldest_open(after: Manifest) -> list[dict[str, Any]]:
    """The source transactions that are open for longest: position of BEGIN, time of opening, rows and bytes."""
    live = ((name, each) for name, one in after.partitions.items() for each in one.state.live())
    return [
        {"partition": name, "position": each.position, "since": each.opened_at, "rows": each.rows, "bytes": each.bytes}
        for name, each in nsmallest(OLDEST_LIMIT, live, key=lambda item: item[1].opened_at)
    ]
