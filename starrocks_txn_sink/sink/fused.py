"""The driver's side of lanes that assemble: what they start from, what they carry, and when that counts.

A micro-batch's numbered order, which the crash tests follow: 1. read what the micro-batch before left open; 2. the
lanes assemble, load and commit, and put what stays open into the directory; 3. publish the manifest; 4. return. A crash
anywhere before 3 replays from the same manifest, and what step 2 has committed is left out by its positions.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from typing import Any, Final
from urllib.parse import quote

from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812

from starrocks_txn_sink.assembler.incremental import all_counters, expire
from starrocks_txn_sink.assembler.spill import CarriedState, FileDirectory, Manifest
from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.errors import InputError, OptionError, Unordered
from starrocks_txn_sink.events import Event, Listener
from starrocks_txn_sink.http import HttpTransport
from starrocks_txn_sink.lane.arrival import SMALL_ROWS
from starrocks_txn_sink.lane.columns import keyless
from starrocks_txn_sink.lane.content import Content
from starrocks_txn_sink.lane.fused import FusedLaneTask, LaneAssembly
from starrocks_txn_sink.lane.messages import CarryOver, Complaint, Message, decode, of_kind
from starrocks_txn_sink.lane.receipt import Receipt
from starrocks_txn_sink.lane.report import LaneReport
from starrocks_txn_sink.lane.task import LaneTask
from starrocks_txn_sink.ledger.access import LeaderConnection, SqlLedger
from starrocks_txn_sink.ledger.ledger import Owner
from starrocks_txn_sink.ledger.take_over import check_owner
from starrocks_txn_sink.logs import get_logger
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.combinations import sorted_first
from starrocks_txn_sink.sink.assembly import TransactionAssembly
from starrocks_txn_sink.sink.events_input import EventsProjection
from starrocks_txn_sink.sink.session import Session
from starrocks_txn_sink.sink.tail_log import TailLog
from starrocks_txn_sink.transaction.steps import run

FOLDER: Final = "starrocks_txn_sink"
STAGE: Final = "fused"  # names the lanes' assembler where a stage of its own has the name it was given
OLDEST: Final = 20  # open source transactions that the listener is told of one by one
_MESSAGES: Final = T.StructType([T.StructField("message", T.StringType())])  # `messages.MESSAGES`, parsed
_RETAIN: Final = "spark.sql.streaming.minBatchesToRetain"

_log = get_logger("assembler")


@dataclass(slots=True)
class FusedWriter:
    """Runs the micro-batches of one session; without a log each frame stands for itself (`StarRocksSink.write`)."""

    assembly: TransactionAssembly
    session: Session
    log: TailLog | None
    sort: bool
    projection: EventsProjection | None = None

    @classmethod
    def open(
        cls, assembly: TransactionAssembly, options: SinkOptions, session: Session, frame: DataFrame, query: str | None
    ) -> FusedWriter:
        """For a streaming query (`query` is its id, or its job where the id cannot be seen), or a frame (None)."""
        sort = _sorted_first(options)
        if query is None:
            return cls(assembly, session, None, sort)
        directory = FileDirectory(_state_uri(frame, assembly, query))
        keep = int(str(frame.sparkSession.conf.get(_RETAIN, "100")))
        return cls(assembly, session, TailLog.open(directory, session.epoch, query, keep), sort)

    def write(self, frame: DataFrame, task: LaneTask, listener: Listener) -> tuple[list[Receipt], list[LaneReport]]:
        """Write one micro-batch of events."""
        before = self._before(task.batch_id)
        now = SystemClock().wall()
        messages = self._lanes(frame, task, before, now)
        receipts = of_kind(messages, Receipt)
        self._conclude(task, before, of_kind(messages, CarryOver), now, bool(receipts), listener)
        return receipts, of_kind(messages, LaneReport)

    def _before(self, batch: int) -> Manifest:
        if self.log is None:
            return Manifest()
        return self.log.before(batch, may_begin=self.assembly.missing_begin == "fail")

    def _lanes(self, frame: DataFrame, task: LaneTask, before: Manifest, now: float) -> list[Message]:
        messages = self._run(frame, task, before, now)
        complaints = of_kind(messages, Complaint)
        if not complaints:
            small = all(each.small for each in of_kind(messages, CarryOver))  # then the next one may be, too
            self.sort = _sorted_first(task.options) or (self.sort and not small)
            return messages
        why = complaints[0].why
        if task.options.shuffle is False:
            raise Unordered(why, hint='Set shuffle to "auto" or true, so that events are sorted first.')
        _log.warning("events.sorted", why=why)
        self.sort = True
        return self._run(frame, task, before, now)

    def _run(self, frame: DataFrame, task: LaneTask, before: Manifest, now: float) -> list[Message]:
        lanes = task.options.lanes
        if self.projection is None or self.log is None:  # frames that stand for themselves may be of any Spark session
            self.projection = EventsProjection(self.assembly, lanes, name_task=task.mandate is not None)
        events = self.projection.of(frame, sort=self.sort)
        assembly = LaneAssembly(
            policy=self.assembly.policy,
            content=Content(task.options.database, keyless(self.session.models)),
            now=now,
            directory=self.log.directory if self.log is not None else None,
            stem=self.log.stem(task.batch_id) if self.log is not None else "frame",
            carried=before.partitions,
            inline=before.inline,
            lines=events.lines,
            arrival_order=not self.sort,
            sortable=task.options.shuffle is not False,
            small_rows=SMALL_ROWS,
        )
        fused = FusedLaneTask(replace(task, at_end_only=not self.sort), assembly)
        return [decode(row[0]) for row in events.rows.mapInArrow(fused, _MESSAGES).collect()]

    def _conclude(
        self,
        task: LaneTask,
        before: Manifest,
        carried: Sequence[CarryOver],
        now: float,
        committed: bool,
        listener: Listener,
    ) -> None:
        touched = _touched(carried)
        inline = [item for each in carried for item in each.inline.items()]
        after = before.then(task.batch_id, self.log.query if self.log is not None else "", touched, inline)
        late, flows, notices = expire(self.assembly.policy, after.partitions, now)
        after = after.then(after.batch, after.query, late, ())
        if self.log is not None:
            if not committed:
                check_still_owner(task.options, self.session)
            self.log.publish(after)
        counters = all_counters([*(each.flows for each in carried), flows], after.levels())
        _tell([*(notice for each in carried for notice in each.notices), *notices], listener)
        oldest = min((each.opened_at for one in after.partitions.values() for each in one.state.live()), default=0.0)
        malformed = sum(each.malformed for each in carried)
        if malformed:
            _log.warning("events.malformed", count=malformed, batch=task.batch_id)
        counts = {**counters.as_dict(), "oldest_open": oldest, "malformed": malformed}
        query = task.checkpoint
        told = {"query": query, "name": f"{query}/{STAGE}", "counts": counts, "oldest": _oldest(after)}
        listener(Event("assembler.counted", told))


def check_still_owner(options: SinkOptions, session: Session) -> None:
    """No lane has committed, so none has looked: raises Fenced when another run of the query has taken the job over."""
    if not session.token:
        return
    clock = SystemClock()
    connection = LeaderConnection(options)
    with contextlib.closing(connection), contextlib.closing(HttpTransport(options)) as transport:
        owner = Owner("", session.epoch, session.checkpoint)
        steps = check_owner(session.job, owner, session.token, random.Random())
        ledger = SqlLedger(connection, options.database)
        run(steps, transport, clock, Deadline.after(options.batch_deadline, clock), ledger)


def _sorted_first(options: SinkOptions) -> bool:
    """Whether events are sorted before any lane has looked at them."""
    return options.shuffle is True or sorted_first(options.features, assembled=True)


def _touched(carried: Sequence[CarryOver]) -> dict[str, CarriedState]:
    touched: dict[str, CarriedState] = {}
    for each in carried:
        twice = touched.keys() & each.partitions.keys()
        if twice:
            raise InputError(f"Two lanes had events of source partition {min(twice)}: this is a bug, please report it.")
        touched.update(each.partitions)
    return touched


def _oldest(after: Manifest) -> list[dict[str, Any]]:
    """The source transactions that have been open for longest: where each began, since when, its rows and bytes."""
    live = ((name, each) for name, one in after.partitions.items() for each in one.state.live())
    return [
        {
            "partition": name,
            "position": each.position,
            "since": each.opened_at,
            "rows": each.rows,
            "bytes": each.bytes,
        }
        for name, each in nsmallest(OLDEST, live, key=lambda item: item[1].opened_at)
    ]


def _tell(notices: Sequence[Event], listener: Listener) -> None:
    for notice in notices:
        _log.warning(notice.name, **notice.fields)
        listener(notice)


def _state_uri(frame: DataFrame, assembly: TransactionAssembly, query: str) -> str:
    if assembly.state_dir is not None:
        return f"{assembly.state_dir.rstrip('/')}/{quote(query, safe='')}"
    root = checkpoint_root(frame, query)
    if root is None:
        raise OptionError(
            "The query's checkpoint location cannot be seen from here (Spark Connect hides it).",
            hint="Give TransactionAssembly a state_dir that driver and executors share; keep it with the checkpoint.",
            option="state_dir",
        )
    return f"{root.rstrip('/')}/{FOLDER}"


def checkpoint_root(frame: DataFrame, query: str) -> str | None:
    """Where the running query `query` has its checkpoint; None when this process cannot see it."""
    session: Any = getattr(frame.sparkSession, "_jsparkSession", None)
    context: Any = getattr(frame.sparkSession, "_sc", None)
    if session is None or context is None:
        return None
    try:
        number = context._jvm.java.util.UUID.fromString(query)
        running = session.sharedState().activeStreamingQueries().get(number)
        return None if running is None else str(running.resolvedCheckpointRoot())
    except Exception:  # py4j's errors, whatever this Spark lacks; a state_dir is asked for instead
        _log.debug("checkpoint.not_found", exc_info=True)
        return None
