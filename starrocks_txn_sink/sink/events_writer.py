"""Raw events in the sink: their projection in the JVM, and `EventsWriter`, which runs the lanes.

Only the open tail of each source partition goes on to the next micro-batch: as files that the sink writes once, and as
a manifest for each micro-batch (`sink.manifest_log`). Lanes take events in arrival order and check the order
(`writer.assembling`), unless `sink.lanes.LanePlan` says that Spark sorts them first.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import nsmallest
from typing import Any, Final

from pyspark.sql import Column, DataFrame, functions as F, types as T

from starrocks_txn_sink.assembler.rules.by_rules import RowRules
from starrocks_txn_sink.assembler.rules.model import Policy
from starrocks_txn_sink.assembler.rules.spill import Manifest
from starrocks_txn_sink.assembler.verified.rules import VerifiedPolicy
from starrocks_txn_sink.clock import Clock, SystemClock
from starrocks_txn_sink.coordinator.coordinator import LaneShare, join_missing
from starrocks_txn_sink.coordinator.model import Receipt
from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.without_effect import Circumstance, warn_of
from starrocks_txn_sink.protocol.label import LedgerRequest
from starrocks_txn_sink.protocol.ledger import retry_until_answered
from starrocks_txn_sink.protocol.snapshots import ReadMarks
from starrocks_txn_sink.protocol.source_keys import ReadKeys, SourceKey
from starrocks_txn_sink.rows.arrival import SMALL_ROWS
from starrocks_txn_sink.rows.columns import EVENT_TIME
from starrocks_txn_sink.sink import projection
from starrocks_txn_sink.sink.assembly import Assembly, event_columns, raw_columns
from starrocks_txn_sink.sink.checkpoint import query_directory
from starrocks_txn_sink.sink.lanes import (
    AlterTables,
    Collect,
    LanePlan,
    NextRound,
    Reading,
    RunLanes,
    Written,
    write_shared,
)
from starrocks_txn_sink.sink.manifest_log import ManifestLog
from starrocks_txn_sink.sink.rule_checks import rules_for
from starrocks_txn_sink.sink.schema.changes import add_missing
from starrocks_txn_sink.sink.schema.new_tables import LayoutOf, NewTables, advising_tables, plain_layout
from starrocks_txn_sink.sink.schema.source_plan import Refusal
from starrocks_txn_sink.sink.session import Session, run_once
from starrocks_txn_sink.sink.source_progress import (
    Partitions,
    SnapshotProgress,
    SourceKeys,
    SourcePlaces,
    SourceProgress,
    judge_key,
    judge_sources,
    keys_that_move,
)
from starrocks_txn_sink.sink.spark_jobs import batch_time, context_of, driver_clock, run_without_input
from starrocks_txn_sink.sink.typed.terms import TableTerms, with_decoding
from starrocks_txn_sink.sources.formats.connect_types import SourceTable
from starrocks_txn_sink.sources.formats.declared_keys import with_declared_keys
from starrocks_txn_sink.sources.formats.raw_format import MESSAGE_KEY, POSITION, SOURCE_PARTITION, RawFormat, is_placed
from starrocks_txn_sink.sources.kafka.spark_reader import (
    KafkaSource,
    PlannedRanges,
    ReadToEnd,
    counts_pauses,
    lane_config,
    needs_topic_names,
    query_partitions,
)
from starrocks_txn_sink.sources.kafka.topic_ids import TopicIds, ask_ids
from starrocks_txn_sink.sources.messages import parse_messages
from starrocks_txn_sink.telemetry import Event, Listener, get_logger
from starrocks_txn_sink.writer.assembling import AssemblingLaneTask, AssemblySpec
from starrocks_txn_sink.writer.messages import CarryOver, LaneReport, Message, decode, of_kind
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


@dataclass(frozen=True, slots=True)
class _SchemaColumns:
    """The part of the projection that frames of one schema share."""

    schema: T.StructType
    columns: list[Column]


@dataclass(slots=True)
class EventsWriter:
    """Runs the micro-batches of one session; without a `log` each frame is independent (`StarRocksSink.write`).

    The first frame decides the `plan`.
    """

    assembly: Assembly
    session: Session
    terms: TableTerms
    log: ManifestLog | None = None
    rules: RowRules = RowRules()  # noqa: RUF009 - frozen
    layout_of: LayoutOf = plain_layout
    source: SourceProgress | None = None
    plan: LanePlan | None = None
    _kafka: KafkaSource | None = None
    _began: float | None = None  # wall time of this run's first micro-batch
    _policy: Policy | VerifiedPolicy | None = None  # of this micro-batch
    _read_to_end: ReadToEnd = field(default_factory=ReadToEnd)
    _row_bytes: float = 200.0  # average in the last micro-batch; the first value is a guess
    _topics: TopicIds = field(default_factory=TopicIds)
    _topic_names: bool = False  # of source partitions, in this micro-batch
    _topic: str = ""  # the only one, where source partitions have no topic
    _kept: dict[tuple[bool, bool], _SchemaColumns] = field(default_factory=dict)  # by sorted and `_topic_names`

    @classmethod
    def open(
        cls,
        assembly: Assembly,
        options: SinkOptions,
        session: Session,
        frame: DataFrame,
        query: str | None,
        *,
        listener: Listener,
        layout_of: LayoutOf = plain_layout,
        plan: LanePlan | None = None,
    ) -> EventsWriter:
        """A writer for a streaming query (`query` is its id, or its job if the id is hidden), or for a frame (None).

        It goes on with what the ledger knows of the source, and tells `listener` of the source's snapshot.
        """
        terms = TableTerms.of((), frame.schema, "", with_decoding(options, assembly.encoding), session.tables)
        rules = rules_for(assembly.rule_set, terms)
        log = None if query is None else cls._log_of(assembly, session, frame, query)
        writer = cls(assembly, session, terms, log, rules, layout_of, plan=plan)
        writer.source = writer._progress(listener) if assembly.follows_source else None
        return writer

    @staticmethod
    def _log_of(assembly: Assembly, session: Session, frame: DataFrame, query: str) -> ManifestLog:
        directory = query_directory(frame, assembly.state_dir, query)
        if directory is None:
            raise OptionError(
                "The sink cannot see the query's checkpoint location.",
                hint=f"Give {type(assembly).__name__} a state_dir that driver and executors share; keep it with the "
                "checkpoint.",
                option="state_dir",
            )
        keep = int(str(frame.sparkSession.conf.get(_RETAIN, "100")))
        return ManifestLog.open(directory, session.epoch, query, keep)

    def _progress(self, listener: Listener) -> SourceProgress:
        """What the ledger knows of the source."""
        job, has_ledger = self.session.job, bool(self.session.token)
        snapshot = SnapshotProgress(job, self._ask(ReadMarks(job)) if has_ledger else {}, listener)
        known = self._ask(ReadKeys(job)) if has_ledger else {}
        keys = SourceKeys(job, known, self._judge_key, self.assembly.table_of, self._judge_sources)
        snapshot.say()
        return SourceProgress(snapshot, keys, SourcePlaces(job))

    def _ask(self, request: LedgerRequest) -> Any:
        reading = retry_until_answered(request, random.Random())
        return run_once(self.terms.options, reading, self.terms.options.batch_deadline)

    def _judge_key(self, key: SourceKey) -> Refusal | None:
        return judge_key(self.terms.options, self.assembly.rule_set, self.session.tables, key)

    def _judge_sources(self, table: str, sources: Sequence[SourceTable]) -> Refusal | None:
        return judge_sources(self.terms.options, self.assembly.rule_set, self.session.tables, table, sources)

    def write(self, frame: DataFrame, task: LaneTask, listener: Listener, collect: Collect) -> None:
        """Write one micro-batch of events."""
        task = replace(task, modes=self.assembly.modes)
        before, now = Manifest(), batch_time(frame, task.checkpoint) or SystemClock().wall()
        self._policy = self.assembly.policy
        if self.log is not None:
            before = self.log.before(task.batch_id, may_begin=not self.assembly.needs_state)
            if self._began is None and self.source is not None:
                self.source.resume(before.marks)
            before = self._on_the_clock(frame, task, before, now)
        clock, now = before.clock.after(now), before.clock.read(now)
        # Change by change a topic is a table, and a connector gets more of them.
        self._topic_names = self.assembly.policy is None or self._needs_topic_names(frame, task, before)
        alter = partial(add_missing, task.options, self.session, listener, rules=self.rules.rules)
        outcome = self._lanes(frame, task, before, now, collect, alter)
        regions = [region for receipt in outcome.receipts for region in receipt.regions]
        if rows := sum(region.rows for region in regions):
            self._row_bytes = sum(region.bytes for region in regions) / rows
        committed = not all(receipt.recycled for receipt in outcome.receipts)  # at the end, which checks the owner
        self._publish(task, replace(before, clock=clock), _join(outcome.carried), now, committed, listener)

    def _on_the_clock(self, frame: DataFrame, task: LaneTask, before: Manifest, now: float) -> Manifest:
        """`before` with the clock of this micro-batch; its policy judges no `open_timeout` before the source's end."""
        clock, limit = before.clock, getattr(self.assembly.policy, "open_timeout", None)
        is_first = self._began is None
        self._began = SystemClock().wall() if self._began is None else self._began
        if not counts_pauses(frame, task.checkpoint):
            clock = clock.running_since(self._began, now)
        if self.log is None or limit is None:
            return replace(before, clock=clock)
        due = before.is_due(limit, before.clock.read(now))
        reached = self._read_to_end.is_reached(frame, task.checkpoint) if due or is_first else False
        if not due:
            return replace(before, clock=clock)
        earlier = self.log.clock_of_overdue(task.batch_id)
        if earlier is None and not reached:
            self._policy = replace(self._policy, open_timeout=None)  # type: ignore[type-var]
        elif earlier is None and before.is_due(limit, clock.read(now)):
            self.log.keep_clock_of_overdue(task.batch_id, clock)
        return replace(before, clock=earlier or clock)

    def _needs_topic_names(self, frame: DataFrame, task: LaneTask, before: Manifest) -> bool:
        if not self._in_partitions(frame):
            return False
        names_before = {*before.partitions, *(task.ownership.positions if task.ownership is not None else ())}
        topics = {topic for topic, _ in query_partitions(frame, task.checkpoint)}
        self._topic = next(iter(topics)) if len(topics) == 1 else ""
        if not topics and "topic" in frame.columns:  # nobody knows how many there are, or will be
            return not any(map(str.isdecimal, names_before))
        return needs_topic_names(topics, names_before)

    def _in_partitions(self, frame: DataFrame) -> bool:
        """Whether Kafka's partitions are the source partitions, and not a column of the query's own."""
        lines = self.assembly.lines
        if lines is None or lines.columns.get(SOURCE_PARTITION) != "partition" or "partition" not in frame.columns:
            return False
        return isinstance(frame.schema["partition"].dataType, T.IntegerType)

    @property
    def _at_offsets(self) -> bool:
        return self.assembly.lines is not None and self.assembly.lines.columns.get(POSITION) == "offset"

    def _lanes(
        self, frame: DataFrame, task: LaneTask, before: Manifest, now: float, collect: Collect, alter: AlterTables
    ) -> Written:
        plan = self.plan
        if plan is None:
            direct = self.assembly.reads_kafka and task.streaming
            proves = self.assembly.assembler.judges_together
            plan = self.plan = LanePlan.of(
                frame, task.options, positioned=True, streaming=task.streaming, direct=direct, proves=proves
            )
            if plan.disordered:  # so far one task reads all events, and knows their order
                plan.lanes, plan.disordered = 1, False
            idle = task.options.without_effect(Circumstance.JSON_TEXTS, *plan.circumstances)
            if self.assembly.reads_kafka and not direct:
                idle["reader"] = "Spark reads the topic of a batch frame, whose offsets only Spark knows"
            warn_of(idle, self.session.key)
        while True:
            outcome = self._run(frame, task, plan, before, now, collect, alter)
            plan.learn(outcome)
            if not outcome.unsorted:
                break
            plan.sort(outcome.unsorted, "events")
        plan.small = _join(outcome.carried).small
        return outcome

    def _run(
        self,
        frame: DataFrame,
        task: LaneTask,
        plan: LanePlan,
        before: Manifest,
        now: float,
        collect: Collect,
        alter: AlterTables,
    ) -> Written:
        planned, log = self._plan_kafka(frame, task, plan), self.log
        if log is not None:
            self._check_topics(frame, task, planned, before)
        if planned is not None and not planned.lanes:
            planned = None  # no offsets: the frame is empty
        partitions = partial(query_partitions, frame, task.checkpoint)
        relayed = log is not None and log.relays
        task = replace(plan.task_of(task), whole=planned is not None or plan.proves)
        assembly = AssemblySpec(
            assembler=self.assembly.assembler,
            policy=self._policy,
            content=self.terms.encoder,
            now=now,
            directory=None if log is None or relayed else log.directory,
            stem="frame" if log is None else log.stem(task.batch_id),
            carried=before.partitions,
            inline=log.relay(before) if log is not None and relayed else before.inline,
            relayed=relayed,
            lines=self.assembly.lines,
            arrival_order=not task.ordered,
            sortable=task.options.shuffle is not False and not task.whole,
            small_rows=SMALL_ROWS,
            marker="" if log is None else log.marker,
            compare=task.options.check_replays,
            placed=self._in_partitions(frame) and self._at_offsets,
            rules=self.assembly.rule_set,
            described=before.described,
        )
        if planned is not None:
            new = self._new_tables(frame, task, planned, before)
            if new is not None:
                alter = partial(alter, create=new.create)  # type: ignore[call-arg]

            def run_lanes(task: LaneTask, assembly: AssemblySpec) -> list[Message]:
                return [decode(text) for text in self._run_on_kafka(frame, assembly, task)]

            rounds = KafkaRounds(run_lanes, assembly, planned, rereads=plan.proves)
            clock = driver_clock(frame)
            with advising_tables(new, clock):
                outcome = self._write(task, rounds.run, collect, clock, alter, rounds.next_round, partitions)
            rounds.take(outcome.carried)
            outcome.carried = [rounds.carried]
            return outcome
        rows, lines = self._project(frame, plan)
        run = partial(self._run_lanes, rows, replace(assembly, lines=lines))
        clock = driver_clock(frame)
        with advising_tables(None, clock):
            return self._write(task, run, collect, clock, alter, partitions=partitions)

    def _write(
        self,
        task: LaneTask,
        run_lanes: RunLanes,
        collect: Collect,
        clock: Clock,
        alter: AlterTables,
        next_round: NextRound = lambda _: None,
        partitions: Partitions = tuple,
    ) -> Written:
        """As `write_shared`; what is new of the source becomes visible with its rows."""
        source = self.source
        if source is None:
            return write_shared(task, run_lanes, collect, clock, next_round, alter)

        def run(task: LaneTask) -> list[Message]:
            messages = run_lanes(task)
            left = any(share.left for share in of_kind(messages, LaneShare))
            source.take(messages, partitions, whole=task.part.upto is None and not left)
            return messages

        def collect_and_say(receipts: Sequence[Receipt], reports: Sequence[LaneReport]) -> None:
            collect(receipts, reports)
            if receipts:
                source.commit()

        def go_on(shares: Sequence[CarryOver]) -> None:
            next_round(shares)
            source.keep()

        written = write_shared(task, run, collect_and_say, clock, go_on, alter, source.rows)
        source.keep()
        return written

    def _new_tables(
        self, frame: DataFrame, task: LaneTask, planned: PlannedRanges, before: Manifest
    ) -> NewTables | None:
        """The new tables of the source; None if no message describes tables."""
        if self._kafka is None or not self.assembly.types_by:
            return None
        topics = {topic for lane in planned.lanes for topic, _ in lane.ranges}
        if before.levels().open:  # the topic of a row that has waited may have no new one
            topics |= {topic for topic, _ in query_partitions(frame, task.checkpoint)}
        return NewTables(task.options, self.assembly, topics, self._kafka.config, self.layout_of)

    def _run_lanes(self, rows: DataFrame, assembly: AssemblySpec, task: LaneTask) -> list[Message]:
        """Run the lanes on the partitions of `rows` as one Spark job."""
        lane = self._lane_task(assembly, task)
        return [decode(row[0]) for row in rows.mapInArrow(lane, _MESSAGES).collect()]

    def _run_on_kafka(self, frame: DataFrame, assembly: AssemblySpec, task: LaneTask) -> list[str]:
        """Run lanes that read their offsets themselves; their messages, encoded."""
        return run_without_input(context_of(frame), self._lane_task(assembly, task), len(assembly.ranges))

    def _lane_task(self, assembly: AssemblySpec, task: LaneTask) -> AssemblingLaneTask:
        """The task of each lane; what tables have got since the last one counts."""
        if self.session.tables is not self.terms.tables:
            options = with_decoding(self.terms.options, self.assembly.encoding)
            self.terms = replace(self.terms, options=options, tables=self.session.tables)
            self.rules = rules_for(self.assembly.rule_set, self.terms)
        keys = keys_that_move(self.terms.options, self.assembly.rule_set, self.terms.tables)
        encoder = replace(self.terms.encoder, rules=self.rules, topic=self._topic, moving=frozenset(keys))
        lines = assembly.lines and with_declared_keys(assembly.lines, keys)
        assembly = replace(assembly, content=encoder, lines=lines)
        task = replace(task, options=self.terms.options, keys=self.terms.keys)
        return AssemblingLaneTask(task, assembly)

    def _plan_kafka(self, frame: DataFrame, task: LaneTask, plan: LanePlan) -> PlannedRanges | None:
        """The offsets that the lanes read themselves; None if Spark reads the events."""
        lines = self.assembly.lines
        if lines is None or plan.reading is not Reading.DIRECT:
            return None
        if self._kafka is None:
            fields = {SOURCE_PARTITION: "partition", POSITION: "offset"}
            # The lanes read the key of a message from Kafka, whatever the frame has.
            own = {name: column for name, column in lines.columns.items() if name != MESSAGE_KEY}
            columns = {column: fields.get(name, name) for name, column in own.items()}
            columns |= {EVENT_TIME: "timestamp"} if projection.event_time(frame) else {}
            self._kafka = KafkaSource.of(frame, task.checkpoint, columns, tuple(lines.columns))
        if self._kafka is None:
            return None
        least = 1 if task.options.lanes is not None else round(_LANE_BYTES / self._row_bytes)
        return self._kafka.plan(frame, plan.tasks, max(1, least), topic_names=self._topic_names)

    def _check_topics(self, frame: DataFrame, task: LaneTask, planned: PlannedRanges | None, before: Manifest) -> None:
        """Raise SourceChanged for a topic that was made again since the query has read it."""
        now = SystemClock().monotonic()
        if planned is not None:
            topics = {topic for lane in planned.lanes for topic, _ in lane.ranges}
        elif self._topics.due(now):  # Spark's own reader
            topics = {topic for topic, _ in query_partitions(frame, task.checkpoint)}
        else:
            return
        config = lane_config(frame) if self._kafka is None else self._kafka.config
        if config is not None:
            self._topics.check(topics, before.topics, partial(ask_ids, config), now)

    def _project(self, frame: DataFrame, plan: LanePlan) -> tuple[DataFrame, RawFormat | None]:
        """The events of `frame` with one Spark partition for each lane, and how the lanes parse them (None: parsed).

        Each call of the JVM's planner costs milliseconds, in a small micro-batch more than the rows. So the writer
        keeps the part of the projection that frames of one schema share. Raises InputError for missing columns or
        wrong types.
        """
        lines, sort = self.assembly.lines, plan.reading is Reading.SORTED
        if lines is not None and sort and not is_placed(lines):  # Spark sorts by what only the values have
            keep = (EVENT_TIME,) if projection.event_time(frame) else ()
            frame, lines = parse_messages(frame, lines, keep, "parse_txn_events"), None
        if self.log is None:  # batch writes may use different Spark sessions
            self._kept.clear()
        kind = sort, self._topic_names
        assembling = self._kept.get(kind)
        if assembling is None or assembling.schema != frame.schema:
            assembling = self._kept[kind] = _SchemaColumns(frame.schema, self._columns(frame, lines))
        rows = frame.select(*assembling.columns)
        if sort:
            order = [F.col(SOURCE_PARTITION).asc_nulls_last(), F.col(POSITION)]
            return projection.sorted_lanes(rows, plan.tasks, order), lines
        return rows.coalesce(plan.tasks), lines

    def _columns(self, frame: DataFrame, lines: RawFormat | None) -> list[Column]:
        if lines is not None:
            return raw_columns(frame, lines, topic_names=self._topic_names)
        return event_columns(frame, SOURCE_PARTITION if self.assembly.lines else self.assembly.source_partition)

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
        expired, flows, notices = self.assembly.assembler.expire(self._policy, after.partitions, now)
        if expired:
            after = after.with_batch(after.batch, after.query, expired, ())
        after = replace(after, clock=before.clock)
        if self.source is not None:
            after = replace(after, marks=self.source.snapshot.waiting)
        after = replace(after, topics={**before.topics, **self._topics.known})
        if after.levels().open:
            after = replace(after, described=join_missing((before.described, carried.described)))
        if self.log is not None:
            if not committed and self.session.token:  # nothing has checked the owner, and no fenced run may publish
                run_once(task.options, self.session.check_owner(random.Random()), task.options.batch_deadline)
            self.log.publish(after, carried.inline.items())
        counts = carried.flows + flows
        levels = after.levels()
        for notice in (*carried.notices, *notices):
            listener(notice)
        oldest_entries = _oldest_open(after)
        if carried.malformed:
            _log.warning("events.malformed", count=carried.malformed, batch=task.batch_id)
        all_counts: dict[str, float] = {
            **counts.as_dict(),
            "oldest_open": oldest_entries[0]["since"] if oldest_entries else 0.0,
            "malformed": carried.malformed,
        }
        all_counts["truncates"] = sum(
            notice.fields["count"] for notice in carried.notices if notice.name == "truncate.ignored"
        )
        all_counts |= {"open": levels.open, "open_rows": levels.open_rows, "state_bytes": levels.state_bytes}
        fields = {"query": task.checkpoint, "name": f"{task.checkpoint}/{STAGE}"}
        listener(Event("assembler.counted", {**fields, "counts": all_counts, "oldest": oldest_entries}))


@dataclass(slots=True)
class KafkaRounds:
    """Lanes that read Kafka, in rounds until the `planned` offsets are read; `carried` is one CarryOver of all.

    Lanes stop reading before their label is too old, and the next round goes on from there with the source transactions
    that are open. The rows of the rounds before are visible then: a failed label costs its own round only, and after a
    restart the ledger leaves out what is visible. `run_lanes` runs lanes as one Spark job.

    With `rereads` each round reads all offsets, and leaves out the source transactions that are visible.
    """

    run_lanes: Callable[[LaneTask, AssemblySpec], list[Message]]
    assembly: AssemblySpec
    planned: PlannedRanges
    rereads: bool = False
    carried: CarryOver = field(default_factory=lambda: CarryOver(small=True))
    _number: int = 1

    def run(self, task: LaneTask) -> list[Message]:
        """Run the lanes of this round, for the first time or again."""
        if not self.planned.lanes:
            return []
        return self.run_lanes(task, replace(self.assembly, ranges=self.planned.lanes))

    def take(self, shares: Sequence[CarryOver]) -> None:
        """The round is visible, and the lanes hand on `shares`."""
        self.carried = self.carried.then(_join(shares))
        self.planned.count(self.carried.flows.events + self.carried.malformed)
        reached = {name: offset for share in shares for name, offset in (share.reached or {}).items()}
        self.planned = self.planned.after(reached)

    def next_round(self, shares: Sequence[CarryOver]) -> None:
        """Lanes have stopped: the next round goes on where they did."""
        if self.rereads:
            return
        self.take(shares)
        _log.info("round.ended", round=self._number, offsets_left=self.planned.offsets)
        self._number += 1
        state = Manifest(-1, "", self.assembly.carried, self.assembly.inline)
        state = state.with_batch(state.batch, state.query, self.carried.partitions, self.carried.inline.items())
        described = join_missing((self.assembly.described, self.carried.described))  # of rows that wait
        self.assembly = replace(self.assembly, carried=state.partitions, inline=state.inline, described=described)


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
    live = (
        (name, transaction) for name, partition in after.partitions.items() for transaction in partition.state.live()
    )
    return [
        {
            "partition": name,
            "position": transaction.position,
            "since": transaction.opened_at + after.clock.down,
            "rows": transaction.rows,
            "bytes": transaction.bytes,
        }
        for name, transaction in nsmallest(OLDEST_LIMIT, live, key=lambda item: item[1].opened_at)
    ]
