"""Intake of verified transactions: schemas, counters, carried-over state, and validation of new events.

One table holds rows and transaction markers. A row has its transaction's id and its number in it (`total_order`, from
1); a row without id belongs to a snapshot. A marker (`status` BEGIN or END) has the number of rows of its transaction,
in total and per collection, and its number (`sequence`) among all markers of its source.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink import typed_json
from starrocks_txn_sink.assembler.rules import history, model
from starrocks_txn_sink.assembler.rules.intake import Mask
from starrocks_txn_sink.assembler.verified.gtids import SeenGtids
from starrocks_txn_sink.assembler.verified.repeats import POSITIONS, Past, Settled
from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.protocol.snapshots import Marks
from starrocks_txn_sink.protocol.source_places import BINLOG, GIVEN_UP, LSN, Places
from starrocks_txn_sink.rows.columns import OFFSET, TOPIC_PARTITION

if TYPE_CHECKING:
    from typing_extensions import Self

STATUS: Final = "status"
TOTAL_ORDER: Final = "total_order"
COLLECTION: Final = model.COLLECTION
EVENT_COUNT: Final = "event_count"
DATA_COLLECTIONS: Final = "data_collections"
SEQUENCE: Final = "sequence"
TIMESTAMP: Final = "timestamp"  # Kafka's, in milliseconds: it tells the deliveries of a transaction apart
ARRIVED: Final = "arrived"  # processing time in seconds; only in the state

BEGIN: Final = "BEGIN"
END: Final = "END"
SNAPSHOT: Final = "r"  # Debezium's op of a row that a snapshot read

ROW_COLUMNS: Final = (model.TXN_ID, TOTAL_ORDER, COLLECTION, model.POSITION, *model.PAYLOAD, TIMESTAMP)
MARKER_COLUMNS: Final = (model.TXN_ID, STATUS, EVENT_COUNT, DATA_COLLECTIONS, SEQUENCE, model.POSITION, TIMESTAMP)

COLLECTION_COUNTS: Final = pa.list_(pa.struct([("data_collection", pa.string()), ("event_count", pa.int64())]))

EVENTS: Final = pa.schema(
    [
        (STATUS, pa.string()),
        (model.TXN_ID, pa.string()),
        (TOTAL_ORDER, pa.int64()),
        (COLLECTION, pa.string()),
        (EVENT_COUNT, pa.int64()),
        (DATA_COLLECTIONS, COLLECTION_COUNTS),
        (SEQUENCE, pa.int64()),
        (model.POSITION, pa.int64()),
        *((name, pa.string()) for name in model.PAYLOAD),
        (TIMESTAMP, pa.int64()),
    ]
)
"""Input of a step. `table` NULL: the row counts for its transaction, but is not released."""

HELD_EVENTS: Final = EVENTS.append(pa.field(ARRIVED, pa.float64()))

IN_KAFKA: Final = pa.schema([(OFFSET, pa.int64()), (TOPIC_PARTITION, pa.string())])
"""The place of an event's message, which goes with a row and is not judged."""

ONLY_JUDGED: Final = frozenset(HELD_EVENTS.names).difference(model.PAYLOAD, [TIMESTAMP])
"""Columns that no released row needs."""

MAX_REMEMBERED: Final = 10_000  # ids of settled transactions, to recognise their repeated events; bounds the state


@dataclass(frozen=True, slots=True)
class HeldBlob:
    """Held events, as one Arrow stream under `number`."""

    number: int
    events: int
    bytes: int


@dataclass(frozen=True, slots=True)
class VerifiedState(model.SourceState):
    """Carried-over state of one source.

    `snapshots` and `letters` count the units of a snapshot before the first transaction and of dead letters; the counts
    are the positions of these units.
    """

    RULES: ClassVar[str] = "verified"
    last_position: int | None = None  # of the last released transaction
    blobs: tuple[HeldBlob, ...] = ()
    next_blob: int = 0
    oldest: float | None = None  # arrival time of the oldest event of an incomplete transaction
    settled: Settled = field(default_factory=Settled)
    quarantined: tuple[str, ...] = ()  # newest ids of quarantined transactions
    snapshots: int = 0
    letters: int = 0
    reported: float | None = None  # time of the last notice about a transaction that waits
    past: Past = field(default_factory=Past)  # of released transactions
    waiting: int = 0  # transactions
    waiting_rows: int = 0
    marks: Marks = field(default_factory=dict)  # of a snapshot's rows that wait

    def expires_at(self, open_timeout: float | None) -> float | None:
        """Time (seconds since the epoch) at which the oldest incomplete transaction reaches `open_timeout`."""
        return self.oldest + open_timeout if self.oldest is not None and open_timeout is not None else None

    def live(self) -> list[model.OpenTransaction]:
        """The transaction that has been incomplete for longest, with the rows of all that wait; its id is not kept."""
        if self.oldest is None:
            return []
        size = sum(blob.bytes for blob in self.blobs)
        return [model.OpenTransaction(None, self.last_position or 0, self.oldest, self.waiting_rows, size)]

    def levels(self) -> tuple[int, int, int]:
        """How many transactions wait, their rows, and the Arrow bytes of the held events."""
        return self.waiting, self.waiting_rows, sum(blob.bytes for blob in self.blobs)

    def places(self) -> Places:
        """The numbers by log up to which the source's transactions are released or given up; none before the first one.

        The ids of transactions say of which log the positions are. Positions of a source with GTIDs say nothing:
        another primary has files of its own, and the released positions go on where those go back.
        """
        given_up = {GIVEN_UP: len(self.quarantined)} if self.quarantined else {}
        return {**self._logs(), **given_up}

    @property
    def released(self) -> int:
        """The position of the last released unit; that of a snapshot in front of all transactions is its number."""
        return self.snapshots if self.last_position is None else self.last_position

    def _logs(self) -> Places:
        numbers = self.past.gtids.numbers
        if numbers:
            return {server: ranges[-1][1] for server, ranges in numbers.items()}
        if self.last_position is None or not self.settled.ids:
            return {}
        newest = self.settled.ids[-1]
        if newest.isdecimal():  # PostgreSQL's number of the transaction
            return {LSN: self.last_position}
        return {BINLOG: self.last_position} if "pos=" in newest else {}

    @classmethod
    def from_json(cls, text: str) -> Self:
        """See SourceState.from_json."""
        fields, missing = model.read_header(text), dict[str, Any]()  # in a state of an earlier release
        if isinstance(fields["settled"], list):
            ids = tuple(fields.pop("settled"))
            missing["settled"] = Settled(ids, bytes(4 * len(ids)))
        if fields.pop("recent", None) is not None:
            missing["past"] = Past({POSITIONS: history.of_earlier_release(b"")}, gtids=SeenGtids(whole=False))
        return replace(typed_json.read(cls, fields), **missing)


def remember_ids(ids: tuple[str, ...], more: list[str]) -> tuple[str, ...]:
    """The newest MAX_REMEMBERED ids of `ids` and `more`."""
    return tuple(dict.fromkeys([*ids, *more]))[-MAX_REMEMBERED:]


@dataclass(frozen=True, slots=True)
class VerifiedIntake:
    """New rows and markers; `late` are rows and ENDs of quarantined transactions."""

    events: pa.Table
    late: pa.Table
    counters: model.Counters


def has_status(events: pa.Table, status: str) -> Mask:
    """Mask of the markers with `status`."""
    mask: Mask = pc.fill_null(pc.equal(events[STATUS], status), False).to_numpy()
    return mask


def validate_events(state: VerifiedState, events: pa.Table, source: str) -> VerifiedIntake:
    """Validate `events` (EVENTS), and drop those of quarantined transactions.

    Raises InputError, which names the missing value and its place, never a row.
    """
    check_events(events, source)
    data = _rows(events)
    snapshots = int(pc.sum(pc.and_(events[STATUS].is_null(), events[model.TXN_ID].is_null())).as_py() or 0)
    quarantined, kept, late = set(state.quarantined).difference(state.settled.ids), events, events.slice(0, 0)
    if quarantined:
        mask = pc.is_in(events[model.TXN_ID], value_set=pa.array(quarantined, pa.string()), skip_nulls=True)
        is_counted = pc.fill_null(pc.not_equal(events[STATUS], BEGIN), True)  # a BEGIN that comes again is not counted
        kept, late = _those(events, pc.invert(mask)), _those(events, pc.and_(mask, is_counted))
    counters = model.Counters(
        events=events.num_rows,
        data=data - snapshots,
        snapshot_rows=snapshots,
        late=late.num_rows,
        late_rows=_rows(late),
    )
    return VerifiedIntake(kept, late, counters)


def _those(events: pa.Table, mask: pa.ChunkedArray) -> pa.Table:
    """The events of a mask, without a copy if it has all or none."""
    count = int(pc.sum(mask).as_py() or 0)
    return events.filter(mask) if 0 < count < events.num_rows else events.slice(0, count)


def placed(events: pa.Table) -> pa.Table:
    """Events with the columns IN_KAFKA, last: NULL where they are not of Kafka, and in a state of an earlier release.

    Held ones have ARRIVED behind them.
    """
    for missing in IN_KAFKA:
        if missing.name not in events.column_names:
            events = events.append_column(missing, pa.nulls(events.num_rows, missing.type))
    return events


def _rows(events: pa.Table) -> int:
    return int(events[STATUS].null_count)


def check_events(events: pa.Table, source: str) -> None:
    """Raise InputError for the first event that lacks what whole transactions need."""
    marker, without_id = events[STATUS].is_valid(), events[model.TXN_ID].is_null()
    row = pc.invert(marker)
    of_transaction = pc.and_(row, pc.invert(without_id))
    snapshot = pc.fill_null(pc.equal(events[model.OP], SNAPSHOT), False)
    unknown = pc.and_(marker, pc.invert(pc.is_in(events[STATUS], value_set=pa.array([BEGIN, END]))))
    metadata = "Set provide.transaction.metadata=true at the connector, and give the transaction topic whole."
    before = "Changes that it wrote before that setting have none: start behind them."
    alone = 'set transactions="none" in DebeziumAssembly (for sync under [source] of its file)'
    for wrong, sentence, hint in (
        (
            pc.and_(row, pc.and_(without_id, pc.invert(snapshot))),
            "A change has no transaction",
            f"{metadata} {before} Or {alone}, with a new checkpoint: each change is written once, in the order of its "
            "key, but a transaction of the source may be split over two micro-batches.",
        ),
        (pc.and_(marker, without_id), "A transaction marker has no id", metadata),
        (unknown, "A transaction marker is neither BEGIN nor END", metadata),
        (pc.and_(of_transaction, events[TOTAL_ORDER].is_null()), "A change has no total_order", metadata),
        (pc.and_(of_transaction, events[COLLECTION].is_null()), "A change does not name its table", metadata),
        (pc.and_(marker, events[SEQUENCE].is_null()), "A transaction marker has no sequence", "Give its offset."),
        (
            pc.and_(of_transaction, events[model.POSITION].is_null()),
            "A change has no position",
            "Only the connectors for PostgreSQL (source.lsn), MySQL and MariaDB (source.file, source.pos) give whole "
            f"transactions. For others {alone}: each change is written once, in the order of its key.",
        ),
    ):
        if pc.any(wrong).as_py():
            at = pc.index(wrong, True).as_py()
            raise InputError(
                f"{sentence}.",
                hint=hint,
                source=source,
                txn_id=events[model.TXN_ID][at].as_py(),
                collection=events[COLLECTION][at].as_py(),
                position=events[model.POSITION][at].as_py(),
            )
