"""Intake of verified transactions: schemas, counters, carried-over state, and validation of new events.

One table holds rows and transaction markers. A row has its transaction's id and its number in it (`total_order`, from
1); a row without id belongs to a snapshot. A marker (`status` BEGIN or END) has the number of rows of its transaction,
in total and per collection, and its number (`sequence`) among all markers of its source.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Final
from zlib import crc32

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.assembler.rules import history, model
from starrocks_txn_sink.assembler.rules.history import Run
from starrocks_txn_sink.assembler.rules.intake import Mask
from starrocks_txn_sink.assembler.verified.gtids import SeenGtids
from starrocks_txn_sink.errors import InputError, SourceChanged
from starrocks_txn_sink.protocol.snapshots import Marks

STATUS: Final = "status"
TOTAL_ORDER: Final = "total_order"
COLLECTION: Final = "collection"
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

ONLY_JUDGED: Final = frozenset(HELD_EVENTS.names).difference(model.PAYLOAD, [TIMESTAMP])
"""Columns that no released row needs."""

MAX_REMEMBERED: Final = 10_000  # ids of settled transactions, to recognise their repeated events; bounds the state

Place = tuple[int, str]
"""The released position of a transaction, and its id."""

_HINT: Final = (
    "Where the source's database was restored or set back, StarRocks may have rows that it lacks: start again with "
    "another `job` and a new checkpoint, behind a new snapshot. To leave the repeats out as written, filter them out "
    "before assemble_debezium."
)

_REMEMBERED: Final = 256  # newest transactions whose places the state has without a gap (`rules.history`)


@dataclass(frozen=True, slots=True)
class VerifiedCounters(model.Counts):
    """Counts of one step.

    Every row is counted once: `data + snapshot_rows == rows + repeated_rows + skipped_rows + quarantined_rows +
    late_rows` plus the growth of `open_rows` since the step before. `open`, `open_rows` and `state_bytes` are levels
    after the step, the others are flows of it.
    """

    events: int = 0  # rows, BEGINs and ENDs that came in
    data: int = 0  # rows of transactions among them
    snapshot_rows: int = 0  # rows of a snapshot among them
    released: int = 0  # verified transactions that were released
    rows: int = 0  # released rows, including those of snapshots
    empty: int = 0  # verified transactions without rows
    skipped_rows: int = 0  # verified rows without a table, which are not released
    repeats: int = 0  # repeated events, dropped
    repeated_rows: int = 0  # rows among them
    unknown_repeats: int = 0  # of the repeats, those of which nothing shows that the source is the same
    quarantined: int = 0  # transactions that were incomplete at open_timeout
    quarantined_rows: int = 0
    trusted: int = 0  # of the released ones, those that no count proves: a restart cut them, and open_timeout is over
    late: int = 0  # events of a transaction after its quarantine
    late_rows: int = 0
    open: int = 0  # transactions that wait
    open_rows: int = 0
    state_bytes: int = 0


@dataclass(frozen=True, slots=True)
class HeldBlob:
    """Held events, as one Arrow stream under `number`."""

    number: int
    events: int
    bytes: int


@dataclass(frozen=True, slots=True)
class VerifiedState:
    """Carried-over state of one source.

    `snapshots` and `letters` count the units of a snapshot before the first transaction and of dead letters; the counts
    are the positions of these units.
    """

    last_position: int | None = None  # of the last released transaction
    blobs: tuple[HeldBlob, ...] = ()
    next_blob: int = 0
    oldest: float | None = None  # arrival time of the oldest event of an incomplete transaction
    settled: tuple[str, ...] = ()  # newest ids of released and of repeated transactions
    quarantined: tuple[str, ...] = ()  # newest ids of quarantined transactions
    snapshots: int = 0
    letters: int = 0
    reported: float | None = None  # time of the last notice about a transaction that waits
    history: bytes = b""  # places and ids of released transactions (`rules.history`)
    run: Run | None = None  # the repeats that came last
    gtids: SeenGtids = field(default_factory=SeenGtids)
    shift: int = 0  # from the source's positions to the released ones, which go on where the source's go back
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

    def to_json(self) -> str:
        text = base64.b64encode(self.history).decode()
        return orjson.dumps({"format": model.FORMAT, **asdict(replace(self, history=b"")), "history": text}).decode()

    @classmethod
    def from_json(cls, text: str) -> VerifiedState:
        """The state that `to_json` wrote; InputError when another format wrote it."""
        value = model.read_header(text)
        value["blobs"] = tuple(HeldBlob(**document) for document in value["blobs"])
        value["settled"], value["quarantined"] = tuple(value["settled"]), tuple(value["quarantined"])
        if value.pop("recent", None) is not None:  # a state of an earlier release
            value["history"] = base64.b64encode(history.of_earlier_release(b"")).decode()
            value["gtids"] = {"numbers": {}, "whole": False}
        value["history"] = base64.b64decode(value["history"])
        value["run"] = Run(**value["run"]) if value.get("run") else None
        gtids = value["gtids"]
        numbers = {server: tuple((low, high) for low, high in ranges) for server, ranges in gtids["numbers"].items()}
        value["gtids"] = SeenGtids(numbers, gtids["whole"])
        return cls(**value)


def remember_ids(ids: tuple[str, ...], more: list[str]) -> tuple[str, ...]:
    """The newest MAX_REMEMBERED ids of `ids` and `more`."""
    return tuple(dict.fromkeys([*ids, *more]))[-MAX_REMEMBERED:]


@dataclass(frozen=True, slots=True)
class VerifiedIntake:
    """New rows and markers; `late` are rows and ENDs of quarantined transactions.

    `unknown` are the repeats that are not proved to be repeats (yet), `run` is the next state's.
    """

    events: pa.Table
    late: pa.Table
    unknown: pa.Table
    run: Run | None
    settled: tuple[str, ...]
    counters: VerifiedCounters


def has_status(events: pa.Table, status: str) -> Mask:
    """Mask of the markers with `status`."""
    mask: Mask = pc.fill_null(pc.equal(events[STATUS], status), False).to_numpy()
    return mask


def validate_events(state: VerifiedState, events: pa.Table, source: str) -> VerifiedIntake:
    """Validate `events` (EVENTS) and drop repeats.

    Raises InputError, which names the missing value and its place, never a row, and SourceChanged for a transaction
    below the newest one that is not proved to be a repeat (`judge_repeats`), or that has the id of another one.
    """
    check_events(events, source)
    data = _rows(events)
    snapshots = int(pc.sum(pc.and_(events[STATUS].is_null(), events[model.TXN_ID].is_null())).as_py() or 0)
    positions = pc.add(events[model.POSITION], state.shift)
    below = pc.less_equal(positions, pa.scalar(state.last_position, pa.int64()))
    is_end = pc.equal(events[STATUS], END)
    ends = events.filter(is_end)
    seen = state.gtids.judge(_ids(ends))[0]
    placed = ends.filter(pc.fill_null(below.filter(is_end), False))
    newer = bool(pc.any(pc.invert(below.filter(is_end))).as_py())
    unproved, run = judge_repeats(source, state, _places(placed, state.shift), newer=newer)
    repeated = [*_ids(placed).to_pylist(), *_ids(ends.filter(pa.array(seen))).to_pylist()]
    settled = remember_ids(state.settled, repeated)
    is_settled = pc.is_in(events[model.TXN_ID], value_set=pa.array(settled, pa.string()), skip_nulls=True)
    quarantined = pc.is_in(events[model.TXN_ID], value_set=pa.array(state.quarantined, pa.string()), skip_nulls=True)
    quarantined = pc.and_(quarantined, pc.invert(is_settled))
    is_counted = pc.fill_null(pc.not_equal(events[STATUS], BEGIN), True)  # a repeated BEGIN is not counted
    late, repeats = _those(events, pc.and_(quarantined, is_counted)), _those(events, pc.and_(is_settled, is_counted))
    # A known id whose END comes with rows at a later position is no more of the same source than an id that is unknown.
    again = pc.and_(pc.and_(is_end, is_settled), pc.and_(pc.invert(below), pc.greater(events[EVENT_COUNT], 0)))
    _refuse_known_ids(source, events.filter(again), state)
    unknown = pc.is_in(repeats[model.TXN_ID], value_set=pa.array(sorted(unproved), pa.string()))
    counters = VerifiedCounters(
        events=events.num_rows,
        data=data - snapshots,
        snapshot_rows=snapshots,
        repeats=repeats.num_rows,
        repeated_rows=_rows(repeats),
        late=late.num_rows,
        late_rows=_rows(late),
    )
    new = _those(events, pc.invert(pc.or_(is_settled, quarantined)))
    return VerifiedIntake(new, late, repeats.filter(unknown), run, settled, counters)


def judge_repeats(
    source: str, state: VerifiedState, places: Sequence[Place], *, newer: bool
) -> tuple[set[str], Run | None]:
    """The ids of the transactions at `places`, none above the newest, that are not proved to be repeats; their run.

    `newer`: transactions above the newest one come with them. Raises SourceChanged for a place of another transaction,
    and for a run that ends without a proof. What a state of an earlier release does not know remains unproved.
    """
    if not places:
        if newer and state.run is not None and not state.run.proved and history.knows_all(state.history):
            raise _unproved(source, state.run)
        return set(), None if newer else state.run
    ordered = sorted(places)
    positions = np.array([position for position, _ in ordered], dtype=np.int64)
    ids = [txn_id for _, txn_id in ordered]
    settled = set(state.settled) | set(state.quarantined)
    known = np.fromiter((txn_id in settled for txn_id in ids), bool, len(ids))
    verdict = history.judge(
        state.history,
        state.run,
        positions,
        lambda at: [checksum(ids[place]) for place in at.tolist()],
        known=known,
        newer=newer,
    )
    if isinstance(verdict, history.Disproof):
        raise SourceChanged(
            "A transaction is at, or between, positions that are read already, and others were there before: the "
            "source was recreated or rewound.",
            hint=_HINT,
            source=source,
            txn_id=ids[verdict.at],
            position=int(positions[verdict.at]),
        )
    if verdict.refused is not None and history.knows_all(state.history):
        raise _unproved(source, verdict.refused)
    return {txn_id for txn_id, proved in zip(ids, verdict.proved.tolist(), strict=True) if not proved}, verdict.run


def remember(past: bytes, places: Sequence[Place]) -> bytes:
    """The history after the released transactions at `places`, positions ascending."""
    chosen = history.newest(len(places), _REMEMBERED, past)
    newest = [places[at] for at in chosen.tolist()]
    positions = np.array([position for position, _ in newest], dtype=np.int64)
    checksums = [checksum(txn_id) for _, txn_id in newest]
    return history.extended(past, len(places), chosen, positions, checksums, _REMEMBERED)


def checksum(txn_id: str) -> int:
    """Of a transaction: its id says which one it is. An END that a restart has cut has another count."""
    return crc32(txn_id.encode())


def _unproved(source: str, run: Run) -> SourceChanged:
    return SourceChanged(
        f"{run.units} transaction(s) came at positions below the newest one that was written, and none of them is one "
        "that the assembler remembers there: the source was set back, restored or recreated. They were not written.",
        hint=_HINT,
        source=source,
        position=run.first,
        last_position=run.last,
    )


def _refuse_known_ids(source: str, again: pa.Table, state: VerifiedState) -> None:
    """Raise SourceChanged for ENDs `again`, of transactions whose id was there at a lower position."""
    if not again.num_rows:
        return
    raise SourceChanged(
        "A transaction has the id of one that was written, and comes at a later position: the source was recreated, or "
        "counts its transactions from the start again. It was not written.",
        hint=_HINT,
        source=source,
        txn_id=again[model.TXN_ID][0].as_py(),
        position=again[model.POSITION][0].as_py(),
        last_position=state.last_position,
    )


def _those(events: pa.Table, mask: pa.ChunkedArray) -> pa.Table:
    """The events of a mask, without a copy if it has all or none."""
    count = int(pc.sum(mask).as_py() or 0)
    return events.filter(mask) if 0 < count < events.num_rows else events.slice(0, count)


def _ids(events: pa.Table) -> pa.Array:
    return events[model.TXN_ID].combine_chunks()


def _places(ends: pa.Table, shift: int) -> list[Place]:
    positions = pc.add(ends[model.POSITION], shift).to_pylist()
    return list(zip(positions, ends[model.TXN_ID].to_pylist(), strict=True))


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
        at = pc.index(wrong, True).as_py()
        if at >= 0:
            raise InputError(
                f"{sentence}.",
                hint=hint,
                source=source,
                txn_id=events[model.TXN_ID][at].as_py(),
                collection=events[COLLECTION][at].as_py(),
                position=events[model.POSITION][at].as_py(),
            )
