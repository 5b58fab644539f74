"""`EventsWriter`: writes the micro-batches of events of one session, which its lanes assemble.

Only the open tail of each source partition goes on to the next micro-batch: as files that the sink writes once, and as
a manifest for each micro-batch (`sink.events_state`). Lanes take events in arrival order and check the order
(`writer.assembling`), unless `sink.lane_plan.LanePlan` says that Spark sorts them first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from pyspark.sql import types as T

from starrocks_txn_sink.assembler.rules.by_rules import RowRules
from starrocks_txn_sink.assembler.rules.spill import Manifest
from starrocks_txn_sink.assembler.verified.bounds import BOUND_REACHED
from starrocks_txn_sink.clock import Clock, SystemClock
from starrocks_txn_sink.coordinator.coordinator import join_missing
from starrocks_txn_sink.coordinator.model import LaneShare, Receipt
from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol.bound import NEAR, Bound
from starrocks_txn_sink.protocol.ledger import Position
from starrocks_txn_sink.rows.arrival import SMALL_ROWS
from starrocks_txn_sink.sink.assembly import Assembly
from starrocks_txn_sink.sink.events_state import EventsState, Opening
from starrocks_txn_sink.sink.input import Input, InputMemory, OpenInput
from starrocks_txn_sink.sink.lane_plan import LanePlan
from starrocks_txn_sink.sink.lanes import AlterTables, Collect, Written, write_shared
from starrocks_txn_sink.sink.rule_checks import rules_for
from starrocks_txn_sink.sink.schema.changes import add_missing
from starrocks_txn_sink.sink.schema.new_tables import LayoutOf, NewTables, advising_tables, plain_layout
from starrocks_txn_sink.sink.session import Session
from starrocks_txn_sink.sink.source_progress import Partitions, SourceProgress, keys_that_move
from starrocks_txn_sink.sink.spark_jobs import driver_clock
from starrocks_txn_sink.sink.typed.terms import TableTerms, with_decoding
from starrocks_txn_sink.sources.formats.declared_keys import with_declared_keys
from starrocks_txn_sink.sources.formats.raw_format import POSITION, SOURCE_PARTITION
from starrocks_txn_sink.sources.kafka.spark_reader import PlannedRanges, needs_topic_names, query_partitions
from starrocks_txn_sink.sources.kafka.topic_ids import TopicIds, ask_ids
from starrocks_txn_sink.telemetry import Event, Listener, get_logger
from starrocks_txn_sink.writer.assembling import AssemblySpec
from starrocks_txn_sink.writer.lane_try import SparkLane
from starrocks_txn_sink.writer.messages import CarryOver, LaneReport, Message, of_kind
from starrocks_txn_sink.writer.task import LaneTask

_log = get_logger("assembler")


@dataclass(slots=True)
class EventsWriter:
    """Runs the micro-batches of one session. The first input decides the `plan`."""

    assembly: Assembly
    session: Session
    terms: TableTerms
    state: EventsState
    rules: RowRules = RowRules()  # noqa: RUF009 - frozen
    layout_of: LayoutOf = plain_layout
    progress: SourceProgress | None = None
    _plan: LanePlan | None = None
    _memory: InputMemory = field(default_factory=InputMemory)
    _topics: TopicIds = field(default_factory=TopicIds)
    _topic: str = ""  # the only one, where source partitions have no topic

    @classmethod
    def open(
        cls,
        assembly: Assembly,
        options: SinkOptions,
        session: Session,
        source: Input,
        *,
        listener: Listener,
        layout_of: LayoutOf = plain_layout,
    ) -> EventsWriter:
        """A writer for inputs like `source`.

        It goes on with what the ledger knows of the source, and tells `listener` of the source's snapshot.
        """
        terms = TableTerms.of((), source.schema, "", with_decoding(options, assembly.encoding), session.tables)
        rules = rules_for(assembly.rule_set, terms)
        state = EventsState.open(assembly, session, source)
        progress = SourceProgress.open(assembly, terms.options, session, listener) if assembly.follows_source else None
        return cls(assembly, session, terms, state, rules, layout_of, progress)

    def write(self, source: Input, task: LaneTask, listener: Listener, collect: Collect) -> None:
        """Write one micro-batch of events."""
        is_first = self.state.is_first
        bound = self.session.bound_now(task.options)
        opening = self.state.begin(source).bounded(bound)
        if is_first and self.progress is not None:
            self.progress.resume(opening.before.marks)
        self._name_topics(source, task, opening)
        alter = partial(add_missing, task.options, self.session, listener, rules=self.rules.rules)
        outcome = self._lanes(source, replace(task, modes=self.assembly.modes), opening, collect, alter)
        self._memory.learn(outcome.receipts)
        if bound is not None:
            self._stand(bound, outcome.carried[0], task.options, listener)
        committed = not all(receipt.recycled for receipt in outcome.receipts)  # at the end, which checks the owner
        marks = self.progress.snapshot.waiting if self.progress is not None else {}
        self.state.publish(
            task,
            opening,
            outcome.carried[0],
            listener,
            committed=committed,
            marks=marks,
            topics=self._topics.known,
        )

    def _stand(self, bound: Bound, carried: CarryOver, options: SinkOptions, listener: Listener) -> None:
        """Raise JobHeld if there is something behind the bound: the micro-batch is not over, and comes again."""
        notice = at_bound(carried, self.session.positions)
        if notice is not None:
            held = self.session.stand(options, bound, notice.fields["how"])
            listener(notice)
            raise held

    # --- the source's partitions ---

    def _name_topics(self, source: Input, task: LaneTask, opening: Opening) -> None:
        # Change by change a topic is a table, and a connector gets more of them.
        names = self.assembly.policy is None or self._needs_topic_names(source, task, opening)
        self._memory.name_topics(names)

    def _needs_topic_names(self, source: Input, task: LaneTask, opening: Opening) -> bool:
        if not self._in_partitions(source.schema):
            return False
        positions = task.ownership.positions if task.ownership is not None else ()
        names_before = {*opening.before.partitions, *positions}
        topics = {topic for topic, _ in _partitions(source)}
        self._topic = next(iter(topics)) if len(topics) == 1 else ""
        if not topics and "topic" in source.schema.names:  # nobody knows how many there are, or will be
            return not any(map(str.isdecimal, names_before))
        return needs_topic_names(topics, names_before)

    def _in_partitions(self, schema: T.StructType) -> bool:
        """Whether Kafka's partitions are the source partitions, and not a column of the query's own."""
        lines = self.assembly.lines
        if lines is None or lines.columns.get(SOURCE_PARTITION) != "partition" or "partition" not in schema.names:
            return False
        return isinstance(schema["partition"].dataType, T.IntegerType)

    def _check_topics(self, source: Input, opened: OpenInput, opening: Opening) -> None:
        """Raise SourceChanged for a topic that was made again since the query has read it."""
        now, planned = SystemClock().monotonic(), opened.planned
        if planned is not None:
            topics = planned.topics
        elif self._topics.due(now):  # Spark's own reader
            topics = {topic for topic, _ in _partitions(source)}
        else:
            return
        config = source.client_config() if planned is None else planned.config
        if config is not None:
            self._topics.check(topics, opening.before.topics, partial(ask_ids, config), now)

    # --- the lanes ---

    def _lanes(self, source: Input, task: LaneTask, opening: Opening, collect: Collect, alter: AlterTables) -> Written:
        """Run the lanes until all is visible; the outcome hands on one CarryOver of all rounds."""
        plan = self._plan = self._plan or source.plan(task.options)
        while True:
            outcome = self._run(source, task, plan, opening, collect, alter)
            plan.learn(unreached=outcome.unreached, small=not outcome.unsorted and outcome.carried[0].small)
            if not outcome.unsorted:
                return outcome
            plan.sort(outcome.unsorted, "events")

    def _run(
        self,
        source: Input,
        task: LaneTask,
        plan: LanePlan,
        opening: Opening,
        collect: Collect,
        alter: AlterTables,
    ) -> Written:
        opened = source.open(self.terms, plan, self._memory)
        planned = opened.planned
        if self.state.log is not None:
            self._check_topics(source, opened, opening)
        task = replace(plan.task_of(task), whole=planned is not None or plan.proves)
        new = self._new_tables(source, task, opened, opening)
        if new is not None:
            alter = partial(alter, create=new.create)  # type: ignore[call-arg]
        rounds = EventRounds(
            partial(self._run_lanes, opened),
            self._spec(source, task, plan, opened, opening),
            planned,
            rereads=plan.proves,
        )
        clock = driver_clock(source.spark)
        with advising_tables(new, clock):
            outcome = self._write(task, rounds, collect, clock, alter, partial(_partitions, source))
        if outcome.unsorted:
            return outcome
        rounds.take(outcome.carried)
        return replace(outcome, carried=[rounds.carried])

    def _spec(self, source: Input, task: LaneTask, plan: LanePlan, opened: OpenInput, opening: Opening) -> AssemblySpec:
        """What the lanes assemble by, and from."""
        log, previous, lines = self.state.log, opening.before, self.assembly.lines
        relayed = log is not None and log.relays
        at_offsets = lines is not None and lines.columns.get(POSITION) == "offset"
        return AssemblySpec(
            assembler=self.assembly.assembler,
            policy=opening.policy,
            content=self.terms.encoder,
            now=opening.now,
            directory=None if log is None or relayed else log.directory,
            stem="frame" if log is None else log.stem(task.batch_id),
            carried=previous.partitions,
            inline=log.relay(previous) if log is not None and relayed else previous.inline,
            relayed=relayed,
            lines=opened.lines,
            arrival_order=not task.ordered,
            sortable=task.options.shuffle is not False and not task.whole,
            small_rows=SMALL_ROWS,
            marker="" if log is None else log.marker,
            compare=task.options.check_replays,
            in_order=plan.in_order,
            placed=self._in_partitions(source.schema) and at_offsets,
            rules=self.assembly.rule_set,
            described=previous.described,
        )

    def _write(
        self,
        task: LaneTask,
        rounds: EventRounds,
        collect: Collect,
        clock: Clock,
        alter: AlterTables,
        partitions: Partitions,
    ) -> Written:
        """As `write_shared`; what is new of the source becomes visible with its rows."""
        progress = self.progress
        if progress is None:
            return write_shared(task, rounds.run, collect, clock, rounds.next_round, alter)

        def run(task: LaneTask) -> list[Message]:
            messages = rounds.run(task)
            waits = any(share.left for share in of_kind(messages, LaneShare))
            progress.take(messages, partitions, whole=task.part.upto is None and not waits)
            return messages

        def collect_and_say(receipts: Sequence[Receipt], reports: Sequence[LaneReport]) -> None:
            collect(receipts, reports)
            if receipts:
                progress.commit()

        def go_on(shares: Sequence[CarryOver]) -> None:
            rounds.next_round(shares)
            progress.keep()

        outcome = write_shared(task, run, collect_and_say, clock, go_on, alter, progress.rows)
        progress.keep()
        return outcome

    def _new_tables(self, source: Input, task: LaneTask, opened: OpenInput, opening: Opening) -> NewTables | None:
        """The new tables of the source; None if no message describes tables."""
        planned = opened.planned
        if planned is None or not self.assembly.types_by:
            return None
        topics = planned.topics
        if opening.before.levels().open:  # the topic of a row that has waited may have no new one
            topics |= {topic for topic, _ in _partitions(source)}
        return NewTables(task.options, self.assembly, topics, planned.config, self.layout_of)

    def _run_lanes(self, opened: OpenInput, task: LaneTask, assembly: AssemblySpec) -> list[Message]:
        """Run the lanes as one Spark job; what tables have got since then counts."""
        if self.session.tables is not self.terms.tables:
            options = with_decoding(self.terms.options, self.assembly.encoding)
            self.terms = replace(self.terms, options=options, tables=self.session.tables)
            self.rules = rules_for(self.assembly.rule_set, self.terms)
        keys = keys_that_move(self.terms.options, self.assembly.rule_set, self.terms.tables)
        encoder = replace(self.terms.encoder, rules=self.rules, topic=self._topic, moving=frozenset(keys))
        lines = assembly.lines and with_declared_keys(assembly.lines, keys)
        assembly = replace(assembly, content=encoder, lines=lines)
        task = replace(task, options=self.terms.options, keys=self.terms.keys)
        return opened.run(SparkLane(task, assembly), len(assembly.ranges))


def at_bound(carried: CarryOver, positions: Mapping[str, Position]) -> Event | None:
    """The notice that there is something behind the bound; None without one.

    Another driver may have written more, before the bound was known: by the ledger's `positions` that is not EXACT.
    """
    for notice in carried.notices:
        if notice.name == BOUND_REACHED:
            source = notice.fields["source"]
            released, visible = carried.partitions[source].state.released, positions.get(source)
            further = visible is not None and (released is None or visible.position > released)
            return replace(notice, fields={**notice.fields, "how": NEAR}) if further else notice
    return None


def _partitions(source: Input) -> frozenset[tuple[str, int]]:
    """The topics and partitions that the query reads; none if they are hidden."""
    return query_partitions(source.spark, source.origin.checkpoint)


@dataclass(slots=True)
class EventRounds:
    """Lanes that assemble, in rounds until a micro-batch is read; `carried` is one CarryOver of all.

    Lanes that read the `planned` offsets of Kafka stop before their label is too old, and the next round goes on from
    there with the source transactions that are open. The rows of the rounds before are visible then: a failed label
    costs its own round only, and after a restart the ledger leaves out what is visible. `run_lanes` runs lanes as one
    Spark job.

    With `rereads`, and where Spark reads, each round gets all events, and leaves out those that are visible.
    """

    run_lanes: Callable[[LaneTask, AssemblySpec], list[Message]]
    assembly: AssemblySpec
    planned: PlannedRanges | None = None
    rereads: bool = False
    carried: CarryOver = field(default_factory=lambda: CarryOver(small=True))
    _number: int = 1

    def run(self, task: LaneTask) -> list[Message]:
        """Run the lanes of this round, for the first time or again."""
        if self.planned is None:
            return self.run_lanes(task, self.assembly)
        if not self.planned.lanes:
            return []
        return self.run_lanes(task, replace(self.assembly, ranges=self.planned.lanes))

    def take(self, shares: Sequence[CarryOver]) -> None:
        """The round is visible, and the lanes hand on `shares`."""
        self.carried = self.carried.then(_join(shares))
        if self.planned is not None:
            self.planned.count(self.carried.flows.events + self.carried.malformed)
            reached = {name: offset for share in shares for name, offset in (share.reached or {}).items()}
            self.planned = self.planned.after(reached)

    def next_round(self, shares: Sequence[CarryOver]) -> None:
        """Lanes have stopped: the next round goes on where they did."""
        if self.planned is None or self.rereads:
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
        shared = joined.partitions.keys() & share.partitions.keys()
        if shared:
            raise InputError(
                f"Two lanes had events of source partition {min(shared)}: this is a bug, please report it."
            )
        joined = joined.then(share)
    return joined
