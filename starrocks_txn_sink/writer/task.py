"""The settings of a lane of one micro-batch, as the driver gives them to an executor."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from starrocks_txn_sink import telemetry
from starrocks_txn_sink.clock import Clock
from starrocks_txn_sink.coordinator.model import RECYCLE_AT
from starrocks_txn_sink.coordinator.quarantine import EVERYTHING, Part
from starrocks_txn_sink.coordinator.table_room import TableRoom
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol.ledger import Position
from starrocks_txn_sink.rows.keys import TableKey
from starrocks_txn_sink.rows.segments import CheckRows, FitRows, Skip, as_they_are
from starrocks_txn_sink.rows.unpositioned import UnpositionedSegmenter
from starrocks_txn_sink.sources.formats.bare_values import ConnectorModes
from starrocks_txn_sink.writer.turns import TurnsAddress


@dataclass(frozen=True, slots=True)
class JobOwnership:
    """The driver's right to write the job, as its lanes get it.

    `driver_token` is that of the driver's take-over, `written` has those of all its claims. By source partition,
    `positions` come from the ledger and `skips` from earlier micro-batches (`rows.segments`). With `canary` no lane of
    this run has asked yet whether its label is listed (`coordinator.ownership`).
    """

    driver_token: str
    positions: Mapping[str, Position] = field(default_factory=dict)
    skips: Mapping[str, Skip] = field(default_factory=dict)
    canary: bool = False
    written: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class LaneTask:
    """The settings of the lanes of one micro-batch under `label`; pickled to the executors (`lane_try.SparkLane`).

    Rows: with `marked` they carry positions and transaction ends; otherwise all lanes' rows are one unpositioned batch.
    With `ordered` they come sorted, so the lane can stop between two source transactions and go on in the next round.
    There are at most `lanes` lanes. With `whole` the driver knows that no source partition is in two of them, and that
    each is in order. In a `streaming` query positions may not go back from one micro-batch to the next. The lane loads
    the rows of `part` whose tables are in `room`.

    Commits: without `ownership` there is no ledger, and delivery is at-least-once. With `claims` the lane begins a
    label of its own before it loads, unless it enters the shared one (`lane_begins`). `seconds` replaces
    `batch_deadline` if another try has used a part of it; an option would cost new connections. At `round_ends` (Unix
    seconds on the driver's clock), `round_seconds` after the round's begin, a lane that can go on in the next round
    stops. With `lane_begins` the first lane that has rows begins the label, as the driver says at `turns`, and a round
    counts from then, or from the lane's first rows (`pipe.Stop`).

    Loads: `keys` has the primary keys of the tables whose rows replace each other (`rows.body`). With `hold` rows are
    loaded when all of them are there: the last micro-batch's keys came again and again. At `turns` the lanes take turns
    at their tables, and ask; None where there is nobody to ask. `compared` has the names in rows that the driver knows
    already, by table; None if it does not want to know any. `modes` are those of the connector
    whose rows these are; None: they are not Debezium's.
    """

    options: SinkOptions
    job: str
    epoch: str
    checkpoint: str
    batch_id: int
    marked: bool = True
    streaming: bool = True
    ownership: JobOwnership | None = None
    compared: Mapping[str, frozenset[str]] | None = None
    keys: Mapping[str, TableKey] = field(default_factory=dict)
    hold: bool = False
    label: str = ""
    part: Part = EVERYTHING
    room: TableRoom | None = None
    lanes: int = 1
    claims: bool = False
    ordered: bool = False
    whole: bool = False
    lane_begins: bool = False
    seconds: float | None = None
    round_ends: float | None = None
    round_seconds: float = 0.0
    modes: ConnectorModes | None = None
    turns: TurnsAddress | None = None
    logging: telemetry.LogSettings | None = field(default_factory=telemetry.executor_log_settings)

    @property
    def time_limit(self) -> float:
        """Seconds that the micro-batch may take."""
        return self.options.batch_deadline if self.seconds is None else self.seconds

    @property
    def longest_round(self) -> float:
        """Seconds after its begin at which a label takes no more rows, if the lanes can go on under another one.

        The rest of its life is for the loads that are left and for the commit.
        """
        oldest = RECYCLE_AT * min(self.options.timeout, _INNER_TIMEOUT, self.time_limit)
        return oldest if self.options.commit_interval is None else min(oldest, self.options.commit_interval)

    def unpositioned(
        self,
        positions: Mapping[str, Position],
        *,
        compare: bool,
        check: CheckRows | None = None,
        fit: FitRows = as_they_are,
    ) -> UnpositionedSegmenter:
        """The segmenter for a lane's part of an unpositioned batch, or for all of it."""
        return UnpositionedSegmenter.of(self.checkpoint, self.batch_id, positions, compare, check, fit)


def now_text(clock: Clock) -> str:
    """The time as a DATETIME literal in UTC, for the sink's own tables."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(clock.wall()))


_INNER_TIMEOUT = 300.0
"""Seconds after begin at which released servers end a transaction, whatever its `timeout` says (wire contract 4.12)."""
