"""Raw events in the sink: their projection in the JVM, and `EventsWriter`, which runs the lanes.

Only the open tail of each source partition goes on to the next micro-batch: as files that the sink writes once, and as
a manifest for each micro-batch (`sink.manifest_log`). For several lanes with labels of their own Spark always sorts
events first. One lane, or lanes that share a label, take events in arrival order and check the order
(`writer.assembling`).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import nsmallest
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession, functions as F, types as T

from starrocks_txn_sink.assembler.rules.incremental import expire
from starrocks_txn_sink.assembler.rules.spill import CarriedState, Manifest
from starrocks_txn_sink.clock import SystemClock
from starrocks_txn_sink.coordinator.model import Receipt
from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.combinations import always_sorted
from starrocks_txn_sink.options.without_effect import Circumstance
from starrocks_txn_sink.rows.arrival import SMALL_ROWS
from starrocks_txn_sink.rows.columns import EVENT_TIME
from starrocks_txn_sink.sink import projection
from starrocks_txn_sink.sink.assembly import TransactionAssembly, event_columns, raw_columns
from starrocks_txn_sink.sink.checkpoint import query_directory
from starrocks_txn_sink.sink.lanes import LanePlan, refuse_own_labels, run_shared
from starrocks_txn_sink.sink.manifest_log import ManifestLog
from starrocks_txn_sink.sink.session import Session, run_once
from starrocks_txn_sink.sink.typed.terms import TableTerms
from starrocks_txn_sink.sources.formats.raw_format import POSITION, SOURCE_PARTITION, VALUE, RawFormat, is_placed
from starrocks_txn_sink.sources.kafka.spark_reader import KafkaSource, PlannedRanges, needs_topic_names, query_topics
from starrocks_txn_sink.sources.messages import parse_messages
from starrocks_txn_sink.telemetry import Event, Listener, get_logger
from starrocks_txn_sink.writer.assembling import AssemblingLaneTask, AssemblySpec
from starrocks_txn_sink.writer.messages import CarryOver, LaneReport, Message, decode, of_kind, why_to_sort
from starrocks_txn_sink.writer.task import LaneTask

STAGE: Final = "lanes"  # in metrics, where a stage of the query has its own name
OLDEST_LIMIT: Final = 20  # open source transactions that an event lists one by one
_LANE_BYTES: Final = 4 << 20
"""Payload that is worth a lane of its own.

One more lane costs a job about 50 ms, in which a lane writes this much, and 2 CPU seconds once, for its process.
"""
_MESSAGES: Final = T.StructType([T.StructField("message", T.StringType())])  # `messages.MESSAGES`, parsed
_RETAIN: Final = "spark.sql.streaming.minBatchesToRetain"

_log = get_logger("assembler")


RunRound = Callable[[LaneTask, AssemblySpec], list[Message]]
"""Runs lanes that read Kafka under one label, and returns the messages of `run_shared`."""
Collect = Callable[[Sequence[Message]], None]
"""Takes the receipts and reports of lanes whose rows are visible."""


@dataclass(frozen=True, slots=True)
class _SchemaColumns:
    """The parts of the projection that frames of one schema share: columns, and the last rows of the lanes."""

    schema: T.StructType
    columns: list[Column]
    ends: DataFrame


@dataclass(slots=True)
class EventsWriter:
    """Runs the micro-batches of one session; without a `log` each frame is independent (`StarRocksSink.write`).

    The first frame decides the `plan`. `sort` says whether Spark sorts the events of the next micro-batch; each
    micro-batch may change it.
    """

    assembly: TransactionAssembly
    session: Session
    terms: TableTerms
    log: ManifestLog | None = None
    plan: LanePlan | None = None
    sort: bool = False
    _kafka: KafkaSource | None = None
    _begun: Manifest | None = None  # from which this run started
    _row_bytes: float = 200.0  # average in the last micro-batch; the first value is a guess
    _topic_names: bool = False  # of source partitions, in this micro-batch
    _kept: dict[tuple[bool, bool], _SchemaColumns] = field(default_factory=dict)  # by `sort` and `_topic_names`

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

    def write(self, frame: DataFrame, task: LaneTask, listener: Listener, collect: Collect) -> None:
        """Write one micro-batch of events."""
        before, now = Manifest(), SystemClock().wall()
        if self.log is not None:
            before = self.log.before(task.batch_id, may_begin=self.assembly.missing_begin == "fail")
            self._topic_names = self._needs_topic_names(frame, task, before)
            self._begun = self._begun or before
        messages = self._lanes(frame, task, before, now, collect)
        collect(messages)
        receipts = of_kind(messages, Receipt)
        regions = [region for each in receipts for region in each.regions]
        if rows := sum(region.rows for region in regions):
            self._row_bytes = sum(region.bytes for region in regions) / rows
        committed = not all(receipt.recycled for receipt in receipts)  # at the end, which checks the owner
        self._publish(task, before, _join(of_kind(messages, CarryOver)), now, committed, listener)

    def _needs_topic_names(self, frame: DataFrame, task: LaneTask, before: Manifest) -> bool:
        lines = self.assembly.lines
        if lines is None or lines.columns.get(SOURCE_PARTITION) != "partition" or "partition" not in frame.columns:
            return False
        if not isinstance(frame.schema["partition"].dataType, T.IntegerType):  # the query's own column
            return False
        known = {*before.partitions, *(task.ownership.positions if task.ownership is not None else ())}
        return needs_topic_names(query_topics(frame, task.checkpoint), known)

    def _lanes(self, frame: DataFrame, task: LaneTask, before: Manifest, now: float, collect: Collect) -> list[Message]:
        plan = self.plan
        if plan is None:
            plan = self.plan = LanePlan.of(frame, task.options, positioned=True, direct=self.assembly.reads_kafka)
            plan.warn_of_options(self.session.key, task.options, Circumstance.JSON_TEXTS)
            self.sort = _sorted_first(task.options, plan)
        messages = self._run(frame, task, plan, before, now, collect)
        why = why_to_sort(messages, task.options, "events")
        if why is None:
            small = _join(of_kind(messages, CarryOver)).small  # the next one is probably small, too
            self.sort = _sorted_first(task.options, plan) or (self.sort and not small)
            return messages
        if plan.shared:
            refuse_own_labels(task.options, why)
            plan = self.plan = LanePlan(task.options.lane_count)
        _log.warning("events.sorted", why=why)
        self.sort = True
        return self._run(frame, task, plan, before, now, collect)

    def _run(
        self, frame: DataFrame, task: LaneTask, plan: LanePlan, before: Manifest, now: float, collect: Collect
    ) -> list[Message]:
        planned, log = self._plan_kafka(frame, task, plan), self.log
        if planned is not None and not planned.lanes:
            planned = None  # no offsets: the frame is empty
        relayed = log is not None and log.relays
        assembly = AssemblySpec(
            policy=self.assembly.policy,
            content=self.terms.encoder,
            now=now,
            directory=None if log is None or relayed else log.directory,
            stem="frame" if log is None else log.stem(task.batch_id),
            carried=before.partitions,
            inline=log.relay(before) if log is not None and relayed else before.inline,
            relayed=relayed,
            lines=self.assembly.lines,
            arrival_order=not self.sort,
            sortable=task.options.shuffle is not False and planned is None,
            small_rows=SMALL_ROWS,
            sentinel=not plan.shared,
            marker="" if log is None else log.marker,
            compare=task.options.check_replays,
        )
        task = replace(task, at_end_only=not self.sort, keys=self.terms.keys, whole=planned is not None)
        if planned is not None:
            return run_rounds(partial(_run_round, frame.sparkSession), task, assembly, planned, collect)
        rows, lines = self._project(frame, task, plan)
        run_lanes = partial(_run_lanes, rows, replace(assembly, lines=lines))
        return run_shared(task, run_lanes) if plan.shared else run_lanes(task)

    def _plan_kafka(self, frame: DataFrame, task: LaneTask, plan: LanePlan) -> PlannedRanges | None:
        """The offsets that the lanes read themselves; None if Spark reads the events."""
        lines = self.assembly.lines
        if lines is None or not self.assembly.reads_kafka or self.sort:
            return None
        if self._kafka is None:
            fields = {VALUE: "value", SOURCE_PARTITION: "partition", POSITION: "offset"}
            columns = {column: fields[name] for name, column in lines.columns.items()}
            columns |= {EVENT_TIME: "timestamp"} if projection.event_time(frame) else {}
            self._kafka = KafkaSource.of(frame, task.checkpoint, columns)
        if self._kafka is None:
            return None
        least = 1 if task.options.lanes is not None else round(_LANE_BYTES / self._row_bytes)
        return self._kafka.plan(frame, plan.lanes, max(1, least), topic_names=self._topic_names)

    def _project(self, frame: DataFrame, task: LaneTask, plan: LanePlan) -> tuple[DataFrame, RawFormat | None]:
        """The events of `frame` with one Spark partition for each lane, and how the lanes parse them (None: parsed).

        Each call of the JVM's planner costs milliseconds, in a small micro-batch more than the rows. So the writer
        keeps the parts of the projection that frames of one schema share. Raises InputError for missing columns or
        wrong types.
        """
        lines, lanes, name_task = self.assembly.lines, plan.lanes, task.ownership is not None
        if lines is not None and self.sort and not is_placed(lines):  # Spark sorts by what only the values have
            keep = (EVENT_TIME,) if projection.event_time(frame) else ()
            frame, lines = parse_messages(frame, lines, keep, "parse_txn_events"), None
        if self.log is None:  # batch writes may use different Spark sessions
            self._kept.clear()
        kind = self.sort, self._topic_names
        kept = self._kept.get(kind)
        if kept is None or kept.schema != frame.schema:
            kept = self._kept[kind] = self._prepare(frame, lines, lanes, name_task)
        rows = frame.select(*kept.columns)
        if plan.shared:
            return rows.coalesce(lanes), lines
        if not self.sort:
            return projection.in_arrival_order(rows, kept.ends), lines
        order = [F.col(SOURCE_PARTITION).asc_nulls_last(), F.col(POSITION)]
        return projection.sorted_lanes(rows, kept.ends, lanes, order, name_task), lines

    def _prepare(self, frame: DataFrame, lines: RawFormat | None, lanes: int, name_task: bool) -> _SchemaColumns:
        """The parts of the projection that frames with the schema of `frame` share."""
        if lines is not None:
            columns = raw_columns(frame, lines, topic_names=self._topic_names)
        else:
            columns = event_columns(frame, SOURCE_PARTITION if self.assembly.lines else self.assembly.by)
        if self.sort:
            columns.append(projection.lane_of(columns[0], lanes).alias(projection.LANE))
        session, schema = frame.sparkSession, frame.select(*columns).schema
        ends = projection.lane_ends(session, schema, lanes, POSITION, name_task=name_task and not self.sort)
        return _SchemaColumns(frame.schema, columns, ends)

    def _publish(
        self,
        task: LaneTask,
        before: Manifest,
        carried: CarryOver,
        now: float,
        committed: bool,
        listener: Listener,
    ) -> None:
        """Publish the manifest after the micro-batch, then emit notices and counts."""
        query = self.log.query if self.log is not None else ""
        after = before.with_batch(task.batch_id, query, carried.partitions, carried.inline.items())
        expired, flows, notices = expire(self.assembly.policy, after.partitions, now)
        after = after.with_batch(after.batch, after.query, expired, ())
        if self.log is not None:
            if not committed and self.session.token:  # nothing has checked the owner, and no fenced run may publish
                run_once(task.options, self.session.check_owner(random.Random()), task.options.batch_deadline)
            self.log.publish(after, carried.inline.items())
        counters = flows + carried.flows + after.levels()
        for notice in (*carried.notices, *notices):
            if not self._has_read(notice):
                listener(notice)
        oldest = min((each.opened_at for one in after.partitions.values() for each in one.state.live()), default=0.0)
        if carried.malformed:
            _log.warning("events.malformed", count=carried.malformed, batch=task.batch_id)
        counts = {**counters.as_dict(), "oldest_open": oldest, "malformed": carried.malformed}
        fields = {"query": task.checkpoint, "name": f"{task.checkpoint}/{STAGE}"}
        listener(Event("assembler.counted", {**fields, "counts": counts, "oldest": _oldest_open(after)}))

    def _has_read(self, notice: Event) -> bool:
        """Whether `notice` is about events that this run has read: a producer may have sent them twice."""
        if notice.name != "source.repeated" or self._begun is None:
            return False
        before = self._begun.partitions.get(notice.fields["partition"], CarriedState()).state.last_position
        return before is None or bool(notice.fields["position"] > before)


def run_rounds(
    run_round: RunRound, task: LaneTask, assembly: AssemblySpec, planned: PlannedRanges, collect: Collect
) -> list[Message]:
    """Run lanes that read Kafka, in rounds until the `planned` offsets are read.

    A round is one label. Its lanes stop reading before the label is too old, and the next round goes on from there with
    the source transactions that are open. The rows of the rounds before are visible then: a failed label costs its own
    round only, and after a restart the ledger leaves out what is visible. So `collect` gets the messages of a round as
    soon as it has ended, and progress gives the next round the whole `batch_deadline`.

    Returns the messages of the last round, with one CarryOver for all rounds.
    """
    carried = CarryOver(small=True)
    state = Manifest(-1, "", assembly.carried, assembly.inline)
    for number in itertools.count(1):
        spec = replace(assembly, carried=state.partitions, inline=state.inline, ranges=planned.lanes)
        round_messages = run_round(task, spec)
        shares = of_kind(round_messages, CarryOver)
        carried = carried.then(_join(shares))
        planned.count(carried.flows.events + carried.malformed)
        planned = planned.after({name: offset for share in shares for name, offset in (share.reached or {}).items()})
        round_messages = [message for message in round_messages if not isinstance(message, CarryOver)]
        if not planned.lanes:
            return [*round_messages, carried]
        receipts = of_kind(round_messages, Receipt)
        others = [message for message in round_messages if not isinstance(message, Receipt)]
        collect([*(replace(receipt, recycled=True) for receipt in receipts), *others])
        _log.info("round.ended", job=task.job, batch=task.batch_id, round=number, offsets_left=planned.offsets)
        state = state.with_batch(state.batch, state.query, carried.partitions, carried.inline.items())
        task = _next_round(replace(task, seconds=None) if receipts else task, of_kind(round_messages, LaneReport))
    raise AssertionError("A count does not end.")


def _next_round(task: LaneTask, reports: Sequence[LaneReport]) -> LaneTask:
    """The task of the next round, which knows what the lanes with `reports` have left out."""
    ownership = task.ownership
    if ownership is not None:
        skips = {name: skip for report in reports for name, skip in report.skips.items()}
        ownership = replace(ownership, skips={**ownership.skips, **skips}, canary=False)
    return replace(task, ownership=ownership, hold=any(report.keys_repeated for report in reports))


def _run_round(session: SparkSession, task: LaneTask, assembly: AssemblySpec) -> list[Message]:
    """Run lanes that read Kafka under one label."""
    lanes = session.range(0, len(assembly.ranges), 1, len(assembly.ranges))
    return run_shared(task, partial(_run_lanes, lanes, assembly))


def _run_lanes(rows: DataFrame, assembly: AssemblySpec, task: LaneTask) -> list[Message]:
    """Run the lanes on the partitions of `rows` as one Spark job."""
    return [decode(row[0]) for row in rows.mapInArrow(AssemblingLaneTask(task, assembly), _MESSAGES).collect()]


def _sorted_first(options: SinkOptions, plan: LanePlan) -> bool:
    """Whether Spark always sorts events before a lane reads them."""
    if plan.shared:
        return False
    return options.shuffle is True or options.lane_count > 1 or always_sorted(options.features, assembled=True)


def _join(shares: Sequence[CarryOver]) -> CarryOver:
    """The CarryOver of all lanes of a round. Raises InputError if two lanes had events of one source partition."""
    joined = CarryOver(small=True)
    for share in shares:
        twice = joined.partitions.keys() & share.partitions.keys()
        if twice:
            raise InputError(f"Two lanes had events of source partition {min(twice)}: this is a bug, please report it.")
        joined = joined.then(share)
    return joined


def _oldest_open(after: Manifest) -> list[dict[str, Any]]:
    """The source transactions that are open for longest: position of BEGIN, time of opening, rows and bytes."""
    live = ((name, each) for name, one in after.partitions.items() for each in one.state.live())
    return [
        {"partition": name, "position": each.position, "since": each.opened_at, "rows": each.rows, "bytes": each.bytes}
        for name, each in nsmallest(OLDEST_LIMIT, live, key=lambda item: item[1].opened_at)
    ]
