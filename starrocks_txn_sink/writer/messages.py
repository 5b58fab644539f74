"""The messages from a lane to its driver: one tagged union, one encoder, one decoder.

A lane that succeeds sends its LaneShare and then its report; an assembling lane also sends its CarryOver. A lane whose
rows must be sorted first sends only an OrderViolation; one whose tables must change first sends TablesLack in place of
its share, one with bad rows that it met too late BadRows, and one that cannot ask who begins the label
DriverUnreached. A lane that fails with an error of the sink sends only the report, and its task succeeds: Spark would
run a failed task again without effect (`writer.lane_try`). Each message is a line of JSON with its `kind`.

Any other error fails the Spark task. Within a process the error carries the report as a value. To another process Spark
passes only the text of an error: the error object stays on the executor, and Spark drops the accumulators of failed
tasks. So where an error leaves its process, the report goes into the text as an *envelope*: a note on the error, one
line with a version and base64 of compressed JSON, whose checksum detects a cut. Only this module writes and reads
envelopes. Spark shows the line at the end of the task's traceback; the package itself shows and logs codes, never this
text.

Spark drops the result of a task that failed and was run again, so the driver counts only attempts whose messages reach
it.
"""

from __future__ import annotations

import base64
import bisect
import contextlib
import itertools
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, TypeVar, get_args

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from starrocks_txn_sink import typed_json
from starrocks_txn_sink.assembler.rules.model import Counters
from starrocks_txn_sink.assembler.rules.spill import CarriedState, carried_fields, of_carried
from starrocks_txn_sink.coordinator.coordinator import join_missing
from starrocks_txn_sink.coordinator.model import LaneShare, MissingColumns, missing_of_words, words_of_missing
from starrocks_txn_sink.coordinator.quarantine import Cut, DeadLetter
from starrocks_txn_sink.errors import StarRocksSinkError, add_note, class_of
from starrocks_txn_sink.protocol.snapshots import Marks
from starrocks_txn_sink.protocol.source_keys import SourceKey
from starrocks_txn_sink.rows.segments import Skip
from starrocks_txn_sink.telemetry import Event

Floats = npt.NDArray[np.float64]

BOUNDS = (
    *(0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75),
    *(1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 21600.0),
)
"""Upper bounds in seconds, inclusive; one more bucket takes longer durations."""


@dataclass(slots=True)
class Durations:
    """A histogram of durations: `counts` per bucket of `bounds` (and one more bucket), and their sum in seconds."""

    bounds: ClassVar[Sequence[float]] = BOUNDS
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        if not self.counts:
            self.counts = [0] * (len(self.bounds) + 1)

    @property
    def count(self) -> int:
        """The number of durations."""
        return sum(self.counts)

    def add(self, value: float) -> None:
        """Count one duration; a negative one counts as zero, because clocks differ."""
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += max(0.0, value)

    def add_all(self, values: Floats) -> None:
        """Count all `values`."""
        if values.size:
            positive = np.maximum(values, 0.0)
            new_counts = np.bincount(np.searchsorted(self.bounds, positive), minlength=len(self.counts))
            self.merge(Durations(new_counts.tolist(), float(positive.sum())))

    def merge(self, durations: Durations) -> None:
        """Add the counts of a histogram with the same bounds."""
        self.counts = [have + more_count for have, more_count in zip(self.counts, durations.counts, strict=True)]
        self.total += durations.total

    def percentile(self, share: float) -> float | None:
        """The value below which `share` of all lie, interpolated within its bucket; None for an empty histogram.

        A value beyond the last bound is returned as that bound.
        """
        if not (target_count := share * self.count):
            return None
        for number, total in enumerate(itertools.accumulate(self.counts)):
            if total >= target_count and self.counts[number]:
                break
        if number == len(self.bounds):
            return self.bounds[-1]
        low = self.bounds[number - 1] if number else 0.0
        inside = (target_count - (total - self.counts[number])) / self.counts[number]
        return low + (self.bounds[number] - low) * inside


Counts = dict[str, Counter[str]]
"""Numbers by operation, and by what came of it."""


def _no_counts() -> Counts:
    return defaultdict(Counter)


@dataclass(slots=True)
class TableLoads:
    """Loads of one table that the server accepted: their bytes as sent, and their durations."""

    encoding: str
    bytes: int = 0
    times: Durations = field(default_factory=Durations)


@dataclass(slots=True)
class LaneWork:
    """What a lane has written, and left out because the ledger has it; sessions and metrics read it.

    `loads` and `deletes` are by table. `event_times` has the latest event time of each source partition in Unix
    seconds. A lane does not know when its rows become visible: so `ages` has pairs of an age at `loaded_at` and the
    number of source transactions of that age, and `LaneReport.commit` makes the `latency` of them.

    For the next micro-batch: `skips` by source partition, as far as this lane has set them; `keys_repeated`, whether
    keys came in more than one load of a StarRocks transaction; `members`, the names in JSON rows by table
    (`rows.member_names`), none where they are those that the driver knows. `wider` has the statements that would give
    columns the source's types (`writer.table_checks`).
    """

    loads: dict[str, TableLoads] = field(default_factory=dict)
    deletes: dict[str, int] = field(default_factory=dict)
    replayed_rows: int = 0
    replayed_transactions: int = 0
    event_times: dict[str, float] = field(default_factory=dict)
    ages: tuple[tuple[float, int], ...] = ()
    loaded_at: float = 0.0
    latency: Durations = field(default_factory=Durations)
    skips: dict[str, Skip] = field(default_factory=dict)
    keys_repeated: bool = False
    members: dict[str, tuple[str, ...]] = field(default_factory=dict)
    wider: tuple[str, ...] = ()


@dataclass(slots=True)
class LaneCost:
    """What the work has cost; metrics read it.

    `requests` are by operation and the reply's status or the error's code, `retries` by operation and reason. The
    peaks are bytes of buffered rows, and loads at a time.
    """

    requests: Counts = field(default_factory=_no_counts)
    retries: Counts = field(default_factory=_no_counts)
    buffer_peak: int = 0
    inflight_peak: int = 0


@dataclass(frozen=True, slots=True)
class SentError:
    """The error that has ended a lane, `at` Unix seconds; without a message for an error that is not the sink's."""

    code: str
    message: str = ""
    advice: str = ""
    place: dict[str, Any] = field(default_factory=dict)
    at: float = 0.0


@dataclass(slots=True)
class LaneTrouble:
    """What went wrong; metrics, and those who judge a failure, read it.

    `errors` are by code. Of the StarRocks transactions `aborted` were rolled back; the outcome of `unsettled` is still
    unknown. `listed`: whether a take-over would have found the label (None: nobody has asked). `failure` has ended the
    lane.
    """

    errors: Counter[str] = field(default_factory=Counter)
    aborted: int = 0
    unsettled: int = 0
    listed: bool | None = None
    failure: SentError | None = None


@dataclass(frozen=True, slots=True)
class LaneReport:
    """The counts of one try at a lane in one micro-batch, for the driver; or those of the driver itself."""

    job: str
    lane: int
    batch_id: int
    work: LaneWork = field(default_factory=LaneWork)
    cost: LaneCost = field(default_factory=LaneCost)
    trouble: LaneTrouble = field(default_factory=LaneTrouble)

    @property
    def code(self) -> str:
        """The code of the error that has ended the lane; empty for a lane that has not failed."""
        return self.trouble.failure.code if self.trouble.failure is not None else ""

    @property
    def failed_at(self) -> float:
        """When the lane failed, in seconds since the Unix epoch; 0 for one that has not."""
        return self.trouble.failure.at if self.trouble.failure is not None else 0.0

    def fail(self, error: BaseException, time: float = 0.0) -> LaneReport:
        """The report of a lane that `error` has ended, `time` seconds since the Unix epoch."""
        failure = SentError(StarRocksSinkError.code, at=time)
        if isinstance(error, StarRocksSinkError):
            place = {name: value if isinstance(value, int) else str(value) for name, value in error.context.items()}
            failure = SentError(error.code, error.message, error.advice, place, time)
        return replace(self, trouble=replace(self.trouble, failure=failure))

    def lane_error(self) -> StarRocksSinkError | None:
        """The error that the lane failed with, made again; None for a code that this process has not."""
        failure, kind = self.trouble.failure, class_of(self.code)
        if failure is None or kind.code != failure.code or not failure.message:
            return None
        return kind(failure.message, hint=failure.advice, **failure.place)

    def commit(self, time: float) -> LaneReport:
        """The report once the lane's rows are visible, `time` seconds since the Unix epoch."""
        if not self.work.ages:
            return self
        latency, (ages, counts) = Durations(), zip(*self.work.ages, strict=True)
        latency.add_all(np.repeat(np.array(ages) + (time - self.work.loaded_at), counts))
        return replace(self, work=replace(self.work, latency=latency, ages=(), loaded_at=0.0))


MESSAGES: Final = "message string"
"""Spark's schema of the rows that a lane's task yields, one row a message."""

_COLUMN: Final = pa.schema([pa.field("message", pa.string())])
_OPEN, _CLOSE = "[starrocks_txn_sink/1:", "]"


@dataclass(frozen=True, slots=True)
class CarryOver:
    """The open state of an assembling lane by source partition, and the counters and notices of its assembler.

    `inline` has the content of small files of the state. A `small` lane had few enough events to take them in any
    order; `malformed` counts values that were left out (`on_malformed="drop"`). A lane that stopped at the end of its
    round has `reached`: the next offset of each source partition that it has read from. `marks` are those of a source's
    snapshot whose rows the lane has loaded, `keys` those under which rows of the source's tables came, `described` the
    types of columns that tables lack.
    """

    partitions: Mapping[str, CarriedState] = field(default_factory=dict)
    flows: Counters = field(default_factory=Counters)
    notices: tuple[Event, ...] = ()
    inline: Mapping[str, bytes] = field(default_factory=dict)
    small: bool = False
    malformed: int = 0
    reached: Mapping[str, int] | None = None
    marks: Marks = field(default_factory=dict)
    keys: tuple[SourceKey, ...] = ()
    described: MissingColumns = field(default_factory=dict)

    def then(self, later: CarryOver) -> CarryOver:
        """The CarryOver of this round and a later one of the micro-batch; `later` says whether more rounds follow."""
        return replace(
            later,
            partitions={**self.partitions, **later.partitions},
            flows=self.flows + later.flows,
            notices=(*self.notices, *later.notices),
            inline={**self.inline, **later.inline},
            small=self.small and later.small,
            malformed=self.malformed + later.malformed,
            described=join_missing((self.described, later.described)),
        )


@dataclass(frozen=True, slots=True)
class OrderViolation:
    """The lane's rows are not in order, and the lane has rolled back; `why` is the text of its error."""

    why: str


@dataclass(frozen=True, slots=True)
class TablesLack:
    """The lane's rows need columns that the tables lack, so the lane has stopped loading and read on."""

    columns: MissingColumns


@dataclass(frozen=True, slots=True)
class RowsWait:
    """The lane has sent rows of source transactions whose other tables have no room; they wait behind `positions`."""

    positions: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class BadRows:
    """The source transactions with bad rows that the lane could not set aside: partition, position, reason, label."""

    found: tuple[tuple[str, int, str, str], ...]

    @classmethod
    def of_places(cls, places: Mapping[Cut, DeadLetter]) -> BadRows:
        """The message about dead letters, by the source partition and position of each."""
        return cls(tuple((*place, letter.reason, letter.label) for place, letter in places.items()))

    def places(self) -> dict[Cut, DeadLetter]:
        """The dead letters by source partition and position, as `of_places` took them."""
        return {(partition, position): DeadLetter(*letter) for partition, position, *letter in self.found}


@dataclass(frozen=True, slots=True)
class DriverUnreached:
    """The lane cannot ask the driver who begins the label, and has loaded nothing; `host` is the driver's name."""

    host: str


Message = LaneShare | LaneReport | CarryOver | OrderViolation | TablesLack | RowsWait | BadRows | DriverUnreached
MessageType = TypeVar(
    "MessageType", LaneShare, LaneReport, CarryOver, OrderViolation, TablesLack, RowsWait, BadRows, DriverUnreached
)

_KINDS: Final[Mapping[str, type[Message]]] = {kind.__name__: kind for kind in get_args(Message)}


def encode(message: Message) -> str:
    """The message as one line of JSON."""
    fields: Any = message
    if isinstance(message, CarryOver):
        fields = carried_fields(message)
    elif isinstance(message, TablesLack):
        fields = {"columns": words_of_missing(message.columns)}
    return typed_json.dumps({"kind": type(message).__name__, "fields": fields}).decode()


def decode(line: str) -> Message:
    """The message in a line of `encode`. Raises ValueError, KeyError or TypeError for any other line."""
    value = orjson.loads(line)
    kind, fields = _KINDS[value["kind"]], value["fields"]
    if kind is CarryOver:
        return of_carried(CarryOver, fields)
    if kind is TablesLack:
        return TablesLack(missing_of_words(fields["columns"]))
    return typed_json.read(kind, fields)


def message_batch(messages: Iterable[Message]) -> pa.RecordBatch:
    """The messages as a batch of MESSAGES."""
    return pa.RecordBatch.from_arrays([pa.array([*map(encode, messages)], pa.string())], schema=_COLUMN)


def of_kind(messages: Iterable[Message], kind: type[MessageType]) -> list[MessageType]:
    """The `messages` of one kind."""
    return [message for message in messages if isinstance(message, kind)]


# --- on an error ---


def attach_report(error: BaseException, report: LaneReport) -> None:
    """Let `error` carry the report of the lane that failed with it, within this process; raises if JSON cannot."""
    encode(report)
    error.lane_report = report  # type: ignore[attr-defined]


def attached_report(error: BaseException | None) -> LaneReport | None:
    """The report that `error` carries, or an error that `error` followed."""
    report: LaneReport | None = None
    while error is not None and report is None:
        report, error = getattr(error, "lane_report", None), error.__cause__ or error.__context__
    return report


def write_envelope(error: BaseException) -> None:
    """Add the report that `error` carries to its text; called where the error leaves this process."""
    if (report := attached_report(error)) is not None:
        add_note(error, envelope(report))


def envelope(report: LaneReport) -> str:
    """The report as a line for the text of an error."""
    return f"{_OPEN}{base64.b64encode(zlib.compress(encode(report).encode())).decode()}{_CLOSE}"


def read_envelope(text: str) -> LaneReport | None:
    """The report in an executor's error text; None without an envelope, or with one that cannot be read."""
    for part in text.split(_OPEN)[1:]:
        content, closed, _ = part.partition(_CLOSE)
        with contextlib.suppress(ValueError, KeyError, TypeError, zlib.error):  # cut, or of another version
            message = decode(zlib.decompress(base64.b64decode(content, validate=True)).decode()) if closed else None
            if isinstance(message, LaneReport):
                return message
    return None
