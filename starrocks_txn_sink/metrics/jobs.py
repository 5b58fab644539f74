"""What the model knows of transactions, assembling stages and jobs, bounded in number and in detail."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from starrocks_txn_sink.coordinator.model import Receipt
from starrocks_txn_sink.errors import JobHeld
from starrocks_txn_sink.metrics.catalogue import JOBS
from starrocks_txn_sink.telemetry import LatestValues

REMEMBERED = 60
REGIONS = 40
"""Regions and positions of one transaction at most."""
_OF_RECEIPT = (
    *("label", "txn_id", "job", "batch_id", "tables", "rows", "bytes", "source_transactions", "loads"),
    *("dead_lettered_rows", "dead_lettered_transactions", "attempts", "retries", "recycled", "open_seconds"),
)


def committed_entry(receipt: Receipt) -> dict[str, Any]:
    """A committed transaction as the page shows it."""
    regions = sorted(receipt.regions, key=lambda region: region.rows, reverse=True)
    return {
        "outcome": "committed",
        "at": receipt.committed_at,
        **{name: getattr(receipt, name) for name in _OF_RECEIPT},
        "phases": receipt.phase_seconds,
        "regions": [[region.partition, region.table, region.rows, region.bytes] for region in regions[:REGIONS]],
        "more_regions": max(0, len(regions) - REGIONS),
        "positions": [
            [span.partition, span.first, span.last, span.source_transactions] for span in receipt.positions[:REGIONS]
        ],
    }


OTHERS = "all others"
STAGES = 20
"""Assembling stages at most; the one that reported longest ago is dropped."""


@dataclass(frozen=True, slots=True)
class AssemblerLevel:
    """Open source transactions, their rows and Arrow bytes; `oldest` is when the oldest began (Unix epoch), 0 for none.

    `transactions` lists the oldest ones (partition, position, since, rows, bytes), if the stage reports them singly.
    """

    open: int = 0
    rows: int = 0
    bytes: int = 0
    oldest: float = 0.0
    transactions: Sequence[Mapping[str, Any]] = ()


def query_of(stage: str) -> str:
    """The id of a stage's query: stages are named <query>/<observation>."""
    return stage.partition("/")[0]


class AssemblerLevels:
    """Levels by stage name. Not thread-safe."""

    def __init__(self) -> None:
        self._levels: LatestValues[str, AssemblerLevel] = LatestValues(STAGES)

    def add_counts(
        self, name: str, counts: Mapping[str, float], now: float, transactions: Sequence[Mapping[str, Any]] = ()
    ) -> dict[str, int]:
        """Add the counts of one stage and micro-batch (assembler.counters); return source transactions by outcome."""
        # A micro-batch without events says nothing about the source transactions that are still open.
        if counts.get("events"):
            level = self._levels.get(name, AssemblerLevel())
            opened = int(counts.get("open", 0))
            oldest = counts.get("oldest_open") or level.oldest or now
            rows, size = int(counts.get("open_rows", 0)), int(counts.get("state_bytes", 0))
            self._levels[name] = AssemblerLevel(
                opened, rows, size, float(oldest) if opened else 0.0, tuple(transactions) if opened else ()
            )
        flows = {outcome: int(counts.get(outcome, 0)) for outcome in ("abandoned", "dropped", "empty")}
        return {**flows, "dropped": flows["dropped"] + int(counts.get("quarantined", 0))}

    def open_transactions(self) -> list[dict[str, Any]]:
        """Open source transactions, oldest first: stage, place (None: all of the stage), open, rows, bytes, since."""
        entries = [entry for name, level in self._levels.items() if level.open for entry in _open_entries(name, level)]
        return sorted(entries, key=lambda entry: (entry["since"], entry["place"] == OTHERS))

    def level(self) -> AssemblerLevel:
        """The sums over all stages, and the oldest of all."""
        levels = self._levels.values()
        oldest = min((level.oldest for level in levels if level.oldest), default=0.0)
        return AssemblerLevel(
            sum(level.open for level in levels),
            sum(level.rows for level in levels),
            sum(level.bytes for level in levels),
            oldest,
        )


def _open_entries(stage: str, level: AssemblerLevel) -> list[dict[str, Any]]:
    """Entries of a stage: the transactions that it reports singly, and one entry for the remaining ones."""
    entries = [
        {
            "stage": stage,
            "place": f"{transaction['partition']} at {transaction['position']}",
            "open": 1,
            **{name: transaction[name] for name in ("rows", "bytes", "since")},
        }
        for transaction in level.transactions
    ]
    if len(entries) == level.open:
        return entries
    remainder = {
        "stage": stage,
        "place": OTHERS if entries else None,
        "open": level.open - len(entries),
        "rows": level.rows - sum(entry["rows"] for entry in entries),
        "bytes": level.bytes - sum(entry["bytes"] for entry in entries),
        "since": max((entry["since"] for entry in entries), default=level.oldest),
    }
    return [*entries, remainder]


_USUAL_BATCHES = 30
_SLOW_FACTOR, _SLOW_SECONDS = 3.0, 10.0


@dataclass(frozen=True, slots=True)
class AlterWait:
    """The wait for a change of a table that StarRocks makes in the background, in this `state`, if it is known."""

    table: str
    since: float
    state: str = ""


@dataclass(frozen=True, slots=True)
class CommitPace:
    """How `freshness` paces a job: seconds of the goal and between two commits, the share of late rows, what decides
    (`coordinator.pace.Reason`)."""

    freshness: float
    interval: float
    late: float
    reason: str


@dataclass(frozen=True, slots=True)
class DriverStep:
    """The step of a micro-batch that the driver is in: a name of STEPS."""

    name: str
    since: float


STEPS: Final = {
    "take_over": "taking the job over",
    "begin": "beginning a label",
    "lanes": "waiting for its lanes",
    "load": "loading the ledger's rows",
    "check": "asking for the job's owner",
    "commit": "waiting for a commit",
    "recover": "asking what became of a commit",
    "rollback": "rolling back a label",
}
"""What the driver does in each step, for people."""


@dataclass(slots=True)
class JobState:
    """State of one job. Times are seconds since the Unix epoch, 0 for never; a success resets `failed_at` to 0.

    `query` is the streaming query's id, '' for a batch write.
    """

    name: str
    first_seen: float
    query: str = ""
    last_commit: float = 0.0
    last_progress: float = 0.0
    last_batch_id: int = -1
    idle: bool = False
    running_since: float = 0.0
    failed_at: float = 0.0
    failed_code: str = ""
    failures: int = 0
    in_doubt: int = 0
    doubt_since: float = 0.0
    started_at: float = 0.0
    restarts: int = 0
    failed_batches: int = 0
    database: str = ""
    outage_since: float = 0.0
    outage_code: str = ""
    alters: dict[str, AlterWait] = field(default_factory=dict)  # by table
    step: DriverStep | None = None
    pace: CommitPace | None = None
    paused_until: float = 0.0
    late_because: str = ""
    ended_at: float = 0.0
    ended_code: str = ""
    batch_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_USUAL_BATCHES))

    @property
    def should_progress(self) -> bool:
        """Whether the job is expected to continue: a query that was not stopped, or a batch write while it runs."""
        if self.ended_at:
            return bool(self.ended_code)
        return bool(self.query or self.running_since)

    def end_batch(self) -> None:
        """No micro-batch is running, and nothing is waited for."""
        self.running_since = self.outage_since = 0.0
        self.alters.clear()
        self.step = None

    @property
    def held(self) -> bool:
        """Whether a command holds the job: it waits as in an outage, and nothing has failed."""
        return bool(self.outage_since) and self.outage_code == JobHeld.code

    @property
    def longest_alter(self) -> AlterWait | None:
        """The wait for a table that has lasted longest; None while nothing is waited for."""
        return min(self.alters.values(), key=lambda wait: wait.since, default=None)

    @property
    def usual_seconds(self) -> float:
        """The median duration of the last micro-batches; 0 without any."""
        return median(self.batch_seconds) if self.batch_seconds else 0.0

    def slow(self, now: float) -> bool:
        """Whether the running micro-batch takes far longer than usual."""
        limit = max(_SLOW_FACTOR * self.usual_seconds, _SLOW_SECONDS)
        return bool(self.running_since) and now - self.running_since > limit

    def stale(self, now: float, limit: float) -> bool:
        """Whether an expected job has made no progress for more than `limit` seconds; a pause of its own is none."""
        since = max(self.last_progress or self.first_seen, self.paused_until)
        return self.should_progress and not self.ended_at and now - since > limit


class JobStatuses:
    """Jobs by name. Not thread-safe."""

    def __init__(self) -> None:
        self._jobs: LatestValues[str, JobState] = LatestValues(JOBS)

    def touch(self, name: str, now: float) -> JobState:
        """The job, created if unknown; marks it as the most recent one."""
        job = self._jobs[name] = self._jobs.get(name) or JobState(name, now)
        return job

    def for_query(self, query: str) -> JobState | None:
        """The job of a streaming query; None if the query does not use the sink."""
        return next((job for job in self if job.query == query), None) if query else None

    def __iter__(self) -> Iterator[JobState]:
        return iter(self._jobs.values())

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def in_doubt(self) -> int:
        """The StarRocks transactions of all jobs whose outcome is unknown."""
        return sum(job.in_doubt for job in self)
