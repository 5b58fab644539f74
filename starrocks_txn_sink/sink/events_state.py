"""The state of a query's events between its micro-batches: open source transactions, and the clock of `open_timeout`.

The manifest of each micro-batch says what is open (`sink.manifest_log`). A time counts while the query runs, or between
runs that end by themselves.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from typing import Any, Final

from starrocks_txn_sink.assembler.rules.model import Policy
from starrocks_txn_sink.assembler.rules.reading_clock import ReadingClock
from starrocks_txn_sink.assembler.rules.spill import Manifest
from starrocks_txn_sink.assembler.verified.rules import VerifiedPolicy
from starrocks_txn_sink.clock import SystemClock
from starrocks_txn_sink.coordinator.coordinator import join_missing
from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.protocol.bound import Bound
from starrocks_txn_sink.sink.assembly import Assembly
from starrocks_txn_sink.sink.checkpoint import query_directory
from starrocks_txn_sink.sink.input import Input
from starrocks_txn_sink.sink.manifest_log import ManifestLog
from starrocks_txn_sink.sink.session import Session, run_once
from starrocks_txn_sink.sink.spark_jobs import batch_time
from starrocks_txn_sink.sources.kafka.spark_reader import ReadToEnd, counts_pauses
from starrocks_txn_sink.telemetry import Event, Listener, get_logger
from starrocks_txn_sink.writer.messages import CarryOver
from starrocks_txn_sink.writer.task import LaneTask

STAGE: Final = "lanes"  # in metrics, where a stage of the query has its own name
OLDEST_LIMIT: Final = 20  # open source transactions that an event lists one by one
_RETAIN: Final = "spark.sql.streaming.minBatchesToRetain"
_log = get_logger("assembler")


@dataclass(frozen=True, slots=True)
class Opening:
    """What a micro-batch begins with: the state `before` it, the time `now` of its clock (seconds), and its rules.

    `clock` is that of the micro-batches after it. The `policy` judges no `open_timeout` before the source's end.
    """

    before: Manifest = Manifest()  # noqa: RUF009 - frozen
    now: float = 0.0
    clock: ReadingClock = ReadingClock()  # noqa: RUF009 - frozen
    policy: Policy | VerifiedPolicy | None = None

    def bounded(self, bound: Bound | None) -> Opening:
        """The same, in which nothing behind a `bound` is released, if the policy's sources have such positions."""
        if bound is None or self.policy is None:
            return self
        return replace(self, policy=self.policy.bounded(bound))


@dataclass(slots=True)
class EventsState:
    """The state of a session; without a `log` each frame is independent (`StarRocksSink.write`)."""

    assembly: Assembly
    session: Session
    log: ManifestLog | None = None
    _began: float | None = None  # wall time of this run's first micro-batch
    _read_to_end: ReadToEnd = field(default_factory=ReadToEnd)

    @classmethod
    def open(cls, assembly: Assembly, session: Session, source: Input) -> EventsState:
        """The state of the query of a micro-batch; raises OptionError where it has no place."""
        if not source.origin.streaming:
            return cls(assembly, session)
        query, spark = source.origin.checkpoint, source.spark
        directory = query_directory(spark, assembly.state_dir, query)
        if directory is None:
            raise OptionError(
                "The sink cannot see the query's checkpoint location.",
                hint=f"Give {type(assembly).__name__} a state_dir that driver and executors share; keep it with the "
                "checkpoint.",
                option="state_dir",
            )
        keep = int(str(spark.conf.get(_RETAIN, "100"))) if spark is not None else 100
        return cls(assembly, session, ManifestLog.open(directory, session.epoch, query, keep))

    @property
    def is_first(self) -> bool:
        """Whether no micro-batch of the query has begun in this run."""
        return self.log is not None and self._began is None

    def begin(self, source: Input) -> Opening:
        """What this micro-batch begins with, which is the same when it runs again."""
        origin, policy = source.origin, self.assembly.policy
        now = batch_time(source.spark, origin.checkpoint) or SystemClock().wall()
        if self.log is None:
            return Opening(now=now, clock=ReadingClock().after(now), policy=policy)
        previous = self.log.before(origin.batch_id, may_begin=not self.assembly.needs_state)
        clock, is_first = previous.clock, self.is_first
        self._began = SystemClock().wall() if self._began is None else self._began
        if not counts_pauses(source.spark, origin.checkpoint):
            clock = clock.running_since(self._began, now)
        if policy is not None and policy.open_timeout is not None:
            due = previous.is_due(policy.open_timeout, previous.clock.read(now))
            reached = due or is_first
            reached = reached and self._read_to_end.is_reached(source.spark, origin.checkpoint)
            if due:
                earlier = self.log.clock_of_overdue(origin.batch_id)
                if earlier is None and reached and previous.is_due(policy.open_timeout, clock.read(now)):
                    self.log.keep_clock_of_overdue(origin.batch_id, clock)
                if earlier is None and not reached:
                    policy = replace(policy, open_timeout=None)
                clock = earlier or clock
        return Opening(previous, clock.read(now), clock.after(now), policy)

    def publish(
        self,
        task: LaneTask,
        opening: Opening,
        carried: CarryOver,
        listener: Listener,
        *,
        committed: bool,
        marks: Mapping[str, str],
        topics: Mapping[str, str],
    ) -> None:
        """Publish the manifest after the micro-batch, then emit notices and counts.

        `marks` of the source's snapshot wait for a commit, `topics` have the ids of those that the run knows. Raises
        Fenced if nothing was `committed`, and another run has the job.
        """
        previous, query = opening.before, self.log.query if self.log is not None else ""
        later = previous.with_batch(task.batch_id, query, carried.partitions, carried.inline.items())
        expired, flows, notices = self.assembly.assembler.expire(opening.policy, later.partitions, opening.now)
        if expired:
            later = later.with_batch(later.batch, later.query, expired, ())
        later = replace(later, clock=opening.clock, marks=marks, topics={**previous.topics, **topics})
        if later.levels().open:
            later = replace(later, described=join_missing((previous.described, carried.described)))
        if self.log is not None:
            if not committed and self.session.token:  # nothing has checked the owner, and no fenced run may publish
                run_once(task.options, self.session.check_owner(random.Random()), task.options.batch_deadline)
            self.log.publish(later, carried.inline.items())
        for notice in (*carried.notices, *notices):
            listener(notice)
        if carried.malformed:
            _log.warning("events.malformed", count=carried.malformed, batch=task.batch_id)
        counts = (carried.flows + flows).as_dict()
        listener(_counted(task.checkpoint, later, carried, counts))


def _counted(query: str, manifest: Manifest, carried: CarryOver, flows: Mapping[str, float]) -> Event:
    """The event about the counts of a micro-batch, and of the state after it."""
    oldest, levels = _oldest_open(manifest), manifest.levels()
    counts = {
        **flows,
        "oldest_open": oldest[0]["since"] if oldest else 0.0,
        "malformed": carried.malformed,
        "truncates": sum(notice.fields["count"] for notice in carried.notices if notice.name == "truncate.ignored"),
        "open": levels.open,
        "open_rows": levels.open_rows,
        "state_bytes": levels.state_bytes,
    }
    return Event("assembler.counted", {"query": query, "name": f"{query}/{STAGE}", "counts": counts, "oldest": oldest})


def _oldest_open(manifest: Manifest) -> list[dict[str, Any]]:
    """The source transactions that are open for longest: position of BEGIN, time of opening, rows and bytes."""
    live = (
        (name, transaction) for name, partition in manifest.partitions.items() for transaction in partition.state.live()
    )
    return [
        {
            "partition": name,
            "position": transaction.position,
            "since": transaction.opened_at + manifest.clock.down,
            "rows": transaction.rows,
            "bytes": transaction.bytes,
        }
        for name, transaction in nsmallest(OLDEST_LIMIT, live, key=lambda item: item[1].opened_at)
    ]
