"""The assembler's vocabulary: columns at both ends, options (Policy), state between micro-batches, counts (Counters).

The state of a source partition is a small header and blobs with the rows of open transactions. The header is JSON of a
few kilobytes. A blob is an Arrow IPC stream under a number that is never reused; it is written once, read when its
transaction is released, and deleted.
"""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from datetime import timedelta
from operator import add, attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, get_args

import orjson
import pyarrow as pa

from starrocks_txn_sink import typed_json
from starrocks_txn_sink.assembler.rules import history
from starrocks_txn_sink.assembler.rules.history import Run
from starrocks_txn_sink.clock import parse_duration
from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.options.checks import check_choice
from starrocks_txn_sink.protocol.bound import Bound
from starrocks_txn_sink.protocol.source_places import Places

if TYPE_CHECKING:
    from typing_extensions import Self

SOURCE_PARTITION: Final = "source_partition"
POSITION: Final = "position"
TYPE: Final = "type"
TXN_ID: Final = "txn_id"
DATABASE: Final = "database"
TABLE: Final = "table"
OP: Final = "op"
ROW: Final = "row"
SEQ: Final = "seq"
TRANSACTION_END: Final = "transaction_end"
COLLECTION: Final = "collection"
NUMBER: Final = "number"
COMMIT: Final = "commit"

# Columns that an event must have besides its source partition, and columns that are NULL when the source lacks them.
REQUIRED: Final = (POSITION, TYPE, TXN_ID, TABLE, ROW)

# The columns of a DATA event that go into its row unchanged; `passthrough` columns follow them.
PAYLOAD: Final = (DATABASE, TABLE, OP, ROW)

EVENT_FIELDS: Final = ((POSITION, pa.int64()), *((name, pa.string()) for name in (TYPE, TXN_ID, *PAYLOAD)))

NUMBERED: Final = pa.schema([(NUMBER, pa.int64()), (COMMIT, pa.bool_())])
"""What numbered rows (`rules.numbered`) have in place of `type`: a message has a number, or the commit's mark.

All rows of a message have the same.
"""

OUTPUT: Final = (SOURCE_PARTITION, POSITION, SEQ, DATABASE, TABLE, OP, ROW, TRANSACTION_END, TXN_ID)


class EventKind:
    """The type of an event in arrays: plain integers, because access to an enum's member is slow."""

    DATA: Final = 0
    BEGIN: Final = 1
    END: Final = 2
    PASSED: Final = 3  # a numbered row that no table takes: it counts in its source transaction, and is not released


Partition = str | int
"""The name of a source partition."""

OnOpenTimeout = Literal["fail", "drop"]
MissingBegin = Literal["fail", "drop", "accept"]


def is_numbered(events: pa.Schema) -> bool:
    """Whether events are rows with numbers (`rules.numbered`), without markers."""
    return TYPE not in events.names


def payload_names(events: pa.Schema) -> list[str]:
    """Columns that rows of an open transaction keep: PAYLOAD, then `passthrough` columns."""
    names = {name for name, _ in EVENT_FIELDS}
    if is_numbered(events):
        names |= {*NUMBERED.names, COLLECTION, SEQ}
    return [*PAYLOAD, *(name for name in events.names if name not in names)]


def released_names(payload: list[str]) -> list[str]:
    """Columns of released tables: OUTPUT without the source partition, then `passthrough`."""
    names = [name for name in OUTPUT if name != SOURCE_PARTITION]
    return [*names, *(name for name in payload if name not in PAYLOAD)]


@dataclass(frozen=True, slots=True)
class Policy:
    """The assembler's options, validated.

    `interleaved`    several source transactions of one source partition may be open at once; `txn_id` separates them
    `open_timeout`   seconds of processing time that a source transaction may stay open; None: no limit
    `on_open_timeout`  `fail` stops the job, `drop` skips the transaction whole, its later rows included
    `missing_begin`  reaction to DATA or END without BEGIN: `fail`; `drop` skips the transaction to its END; `accept`
                     takes its first event for the BEGIN
    """

    interleaved: bool = False
    open_timeout: float | None = None
    on_open_timeout: OnOpenTimeout = "fail"
    missing_begin: MissingBegin = "fail"

    def __post_init__(self) -> None:
        check_choice("on_open_timeout", self.on_open_timeout, get_args(OnOpenTimeout))
        check_choice("missing_begin", self.missing_begin, get_args(MissingBegin))
        check_open_timeout(self.open_timeout)

    def bounded(self, _: Bound) -> Policy:
        """The same: these sources have no positions that a snapshot could show."""
        return self


def check_open_timeout(limit: float | None) -> None:
    """OptionError for an `open_timeout` (seconds) that is not above zero."""
    if limit is not None and not limit > 0:
        raise OptionError("open_timeout must be above zero.", hint="Leave it out to wait forever.")


def seconds(value: float | timedelta | str | None) -> float | None:
    """An `open_timeout` in seconds: a number of seconds, a timedelta, or text such as `500ms`, `2 min`, `1h`."""
    if value is None:
        return None
    parsed = parse_duration(value)
    if parsed is None:
        raise OptionError(
            f"open_timeout is {repr(value)[:80]}, which is no duration.",
            hint="Write it like 500ms, 30s, 2min or 1h.",
            option="open_timeout",
        )
    return parsed


# --- state ---

FORMAT: Final = 1  # of a state's header
BLOB_BYTES: Final = 8 << 20  # so that neither a state store's value nor a message to it grows without limit


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A source transaction without END so far.

    `position` is the position of its first event, `opened_at` that event's processing time (seconds since the epoch).
    `dropped`: the transaction holds no rows any more, and its events are skipped to its END. `number` is that of its
    last event, where the source counts them (`rules.numbered`).
    """

    txn_id: str | None
    position: int
    opened_at: float
    rows: int = 0
    bytes: int = 0
    blobs: tuple[int, ...] = ()
    dropped: bool = False
    number: int | None = None

    def with_rows(self, rows: int, more_bytes: int, blobs: tuple[int, ...]) -> OpenTransaction:
        """The transaction with `rows` more rows of `more_bytes` Arrow bytes, which are in the further `blobs`."""
        return replace(self, rows=self.rows + rows, bytes=self.bytes + more_bytes, blobs=self.blobs + blobs)

    def as_dropped(self) -> OpenTransaction:
        """The transaction without its rows: the events that follow are skipped, to its END."""
        return replace(self, rows=0, bytes=0, blobs=(), dropped=True)


class SourceState(ABC):
    """The state of a source partition between two micro-batches; `RULES` names the rules that have written it."""

    __slots__ = ()
    RULES: ClassVar[str]
    last_position: int | None
    """The position of the last event, or of the last released transaction (VerifiedState); None before any."""

    @classmethod
    @abstractmethod
    def from_json(cls, text: str) -> Self:
        """The state that `to_json` wrote, also of an earlier release; InputError when another format wrote it."""

    @abstractmethod
    def expires_at(self, open_timeout: float | None) -> float | None:
        """Time (seconds since the epoch) at which the oldest open transaction reaches `open_timeout`; None for none."""

    @abstractmethod
    def live(self) -> list[OpenTransaction]:
        """The open transactions that are not dropped; of VerifiedState the oldest, with the rows of all."""

    @property
    def released(self) -> int | None:
        """The position of the last released unit; None without any."""
        return self.last_position

    @abstractmethod
    def levels(self) -> tuple[int, int, int]:
        """How many transactions wait, their rows, and the Arrow bytes of these."""

    def places(self) -> Places:
        """The numbers by log of the source up to which its transactions are released; none where no rule knows them."""
        return {}

    def to_json(self) -> str:
        """The header as JSON of a few kilobytes; the rows are in the blobs."""
        return typed_json.dumps({"format": FORMAT, **typed_json.fields_of(self)}).decode()


@dataclass(frozen=True, slots=True)
class AssemblerState(SourceState):
    """One source partition: its last position, its open transactions in the order of BEGINs, the next blob number.

    `history` has what repeats are compared with, and `run` the repeats that came last (`rules.history`). A state of an
    earlier release knows the newest events only.
    """

    RULES: ClassVar[str] = ""
    last_position: int | None = None
    open: tuple[OpenTransaction, ...] = ()
    next_blob: int = 0
    history: bytes = b""
    run: Run | None = None

    def live(self) -> list[OpenTransaction]:
        return [transaction for transaction in self.open if not transaction.dropped]

    def levels(self) -> tuple[int, int, int]:
        live = self.live()
        return len(live), sum(transaction.rows for transaction in live), sum(transaction.bytes for transaction in live)

    def expires_at(self, open_timeout: float | None) -> float | None:
        opened = [transaction.opened_at for transaction in self.live()]
        return min(opened) + open_timeout if opened and open_timeout is not None else None

    @classmethod
    def from_json(cls, text: str) -> Self:
        """See SourceState.from_json."""
        fields = read_header(text)
        recent, remembers = fields.pop("recent", ""), "history" in fields
        state = typed_json.read(cls, fields)
        if not remembers:
            return replace(state, history=history.of_earlier_release(base64.b64decode(recent)))
        if state.history and history.last_place(state.history) not in (history.NOWHERE, state.last_position):
            return replace(state, history=history.without_slots(state.history), run=None)
        return state


def read_header(text: str) -> dict[str, Any]:
    """The fields of a state's header; InputError when another format wrote it."""
    value: dict[str, Any] = orjson.loads(text)
    if value.pop("format", None) != FORMAT:
        raise InputError(
            "The assembler's state in the checkpoint has another format.",
            hint="Finish the query with the release that started it, then start it with a new checkpoint.",
        )
    return value


def to_blob(table: pa.Table) -> bytes:
    """`table` as one Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def from_blob(blob: bytes) -> pa.Table:
    """The table in an Arrow IPC stream; its columns point into `blob`, nothing is copied."""
    with pa.ipc.open_stream(blob) as reader:
        return reader.read_all()


def pieces(table: pa.Table, size: int | None = None) -> list[pa.Table]:
    """Split `table` into slices of about BLOB_BYTES; none for an empty table. `size`: `table.nbytes`, if known."""
    if table.num_rows == 0:
        return []
    size = table.nbytes if size is None else size
    if size <= BLOB_BYTES:
        return [table]
    count = min(table.num_rows, -(-size // BLOB_BYTES))
    rows = -(-table.num_rows // count)
    return [table.slice(start, rows) for start in range(0, table.num_rows, rows)]


# --- counts ---


@dataclass(frozen=True, slots=True)
class Counters:
    """Counts of one step of any rules; `+` adds them.

    Every row is counted once: `data + snapshot_rows` is the sum of `rows`, `repeated_rows`, `skipped_rows`,
    `abandoned_rows`, `dropped_rows`, `quarantined_rows`, `late_rows` and the growth of `open_rows` since the step
    before. `open`, `open_rows` and `state_bytes` are levels after the step, the others are flows of the step.
    """

    events: int = 0  # rows and markers (BEGIN, END) that came in
    data: int = 0  # rows of source transactions among them
    snapshot_rows: int = 0  # rows of a snapshot among them
    released: int = 0  # source transactions released whole
    rows: int = 0  # released rows, including those of snapshots
    empty: int = 0  # source transactions that ended without rows
    skipped_rows: int = 0  # rows of whole source transactions that no table takes
    repeats: int = 0  # repeated events, dropped
    repeated_rows: int = 0  # rows among them
    unknown_repeats: int = 0  # of the repeats, those of which nothing shows that the source is the same
    abandoned: int = 0  # unfinished source transactions that a new BEGIN discarded
    abandoned_rows: int = 0
    dropped: int = 0  # source transactions dropped by policy: BEGIN missing, or open too long
    dropped_rows: int = 0
    quarantined: int = 0  # source transactions whose counts did not match at open_timeout
    quarantined_rows: int = 0
    trusted: int = 0  # of the released ones, those that no count proves: a restart cut them, and open_timeout is over
    late: int = 0  # events of a source transaction after its quarantine
    late_rows: int = 0
    open: int = 0  # source transactions that wait for their end
    open_rows: int = 0
    state_bytes: int = 0  # Arrow bytes of the open rows

    def __add__(self, other: Counters) -> Counters:
        values = attrgetter(*self.__match_args__)  # every step adds counts, and astuple would copy each value
        return Counters(*map(add, values(self), values(other)))

    def as_dict(self) -> dict[str, int]:
        """The counts by name, in the order of `names`."""
        return {name: getattr(self, name) for name in self.__match_args__}

    @classmethod
    def names(cls) -> list[str]:
        """The names of the counts, in the order of the fields. A stage observes its counts under them."""
        return list(cls.__match_args__)

    def with_levels_of(self, state: SourceState) -> Counters:
        """These flows and the levels of `state`."""
        opened, rows, size = state.levels()
        return replace(self, open=opened, open_rows=rows, state_bytes=size)
