"""A Debezium-like source for tests: transactions as plain values, their events in any order, and what must come out."""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest

from starrocks_txn_sink.assembler.rules.model import SOURCE_PARTITION, from_blob, to_blob
from starrocks_txn_sink.assembler.rules.release import ReleasedRows
from starrocks_txn_sink.assembler.rules.spill import CarriedState, Manifest, SpillStorage
from starrocks_txn_sink.assembler.verified.intake import EVENTS, NUMBER, ORIGIN, VerifiedCounters, VerifiedState
from starrocks_txn_sink.assembler.verified.lane import HELD_BYTES, VerifiedLane
from starrocks_txn_sink.assembler.verified.rules import VerifiedAssembler, VerifiedPolicy
from starrocks_txn_sink.assembler.verified.together import (
    LoadingLane,
    OneLaneNeeded,
    ProvingLane,
    judge_together,
    read_proof,
)
from starrocks_txn_sink.errors import StarRocksSinkError
from starrocks_txn_sink.rows.columns import EVENT_TIME
from starrocks_txn_sink.telemetry import Event
from tests.support.memory_directory import MemoryDirectory

Fields = dict[str, Any]


def row(txn: str, order: int, collection: str = "public.a", lsn: int = 5, **other: Any) -> Fields:
    table: str | None = collection.split(".")[1]
    content = f'{{"t": "{txn}", "n": {order}}}'
    base = {"txn_id": txn, "total_order": order, "collection": collection, "position": lsn}
    return base | {"table": table, "op": "c", "row": content} | other


def end(txn: str, sequence: int, lsn: int | None, tables: dict[str, int], **other: Any) -> Fields:
    listed = [{"data_collection": name, "event_count": n} for name, n in tables.items()]
    base = {"status": "END", "txn_id": txn, "sequence": sequence, "position": lsn}
    return base | {"event_count": sum(tables.values()), "data_collections": listed} | other


def begin(txn: str, sequence: int, lsn: int) -> Fields:
    return {"status": "BEGIN", "txn_id": txn, "sequence": sequence, "position": lsn}


def read(key: int, lsn: int = 1) -> Fields:
    """A row of a snapshot."""
    return {"collection": "public.a", "position": lsn, "table": "a", "op": "r", "row": f'{{"k": {key}}}'}


def table(events: Iterable[Fields]) -> pa.Table:
    return pa.Table.from_pylist(list(events), schema=EVENTS)


@dataclass
class Twin:
    """A lane that gets the events of a Stage, in two chunks; every other micro-batch is spilled, and cut in pieces."""

    directory: MemoryDirectory = field(default_factory=MemoryDirectory)
    manifest: bytes = field(default_factory=lambda: Manifest().to_json())
    batch: int = 0

    def feed(
        self, policy: VerifiedPolicy, before: VerifiedState, events: Sequence[Fields], now: float
    ) -> tuple[list[Fields], VerifiedLane, VerifiedState]:
        """The rows with their source partition, the lane, and the state without blobs."""
        manifest = Manifest.from_json(self.manifest)
        carried = manifest.partitions.get("shop", CarriedState(VerifiedState()))
        assert isinstance(carried.state, VerifiedState)
        state = replace(before, blobs=carried.state.blobs, next_blob=carried.state.next_blob)
        storage = SpillStorage(self.directory, f"e-{self.batch}", manifest.inline)
        tiny = self.batch % 2
        lane = VerifiedLane(
            policy,
            {"shop": CarriedState(state, carried.places)},
            now,
            storage,
            0 if tiny else HELD_BYTES,
            3 if tiny else 99,
        )
        for chunk in (events[: len(events) // 3], events[len(events) // 3 :]):
            named = table(chunk)
            assert not list(lane.feed(named.add_column(0, SOURCE_PARTITION, pa.repeat("shop", named.num_rows))))
        rows = [
            {SOURCE_PARTITION: name} | {column: value for column, value in row.items() if column != EVENT_TIME}
            for part in lane.finish()
            for name, rows in part.by_partition()
            for row in rows.to_pylist()
        ]
        after = manifest.with_batch(self.batch, "q", lane.carry_over(), storage.new_inline.items())
        storage.close()
        self.manifest, self.batch = after.to_json(), self.batch + 1
        left = after.partitions["shop"].state
        assert isinstance(left, VerifiedState)
        assert set(after.partitions["shop"].places) == {blob.number for blob in left.blobs}
        return rows, lane, replace(left, blobs=(), next_blob=0)


@dataclass
class Lanes:
    """Lanes that get the events of a Stage, another split of the topics' partitions over other lanes each time.

    Rows with one text are in one partition. The lanes read in another order when they load. `alone` counts the
    micro-batches that one lane had to take.
    """

    directory: MemoryDirectory = field(default_factory=MemoryDirectory)
    manifest: bytes = field(default_factory=lambda: Manifest().to_json())
    batch: int = 0
    alone: int = 0
    together: int = 0
    rng: random.Random = field(default_factory=lambda: random.Random(7))

    def feed(
        self, policy: VerifiedPolicy, before: VerifiedState, events: Sequence[Fields], now: float
    ) -> tuple[list[list[Fields]], VerifiedCounters, tuple[Event, ...], VerifiedState]:
        """The rows of each lane with their ORIGIN, the counts, the notices, and the state without blobs."""
        manifest = Manifest.from_json(self.manifest)
        carried = manifest.partitions.get("shop", CarriedState(VerifiedState()))
        assert isinstance(carried.state, VerifiedState)
        state = replace(before, blobs=carried.state.blobs, next_blob=carried.state.next_blob)
        held = {"shop": CarriedState(state, carried.places)} if self.batch else {}
        storages = [SpillStorage(self.directory, f"e-{self.batch}-{n}", manifest.inline) for n in range(4)]
        placed = [(origin_of(event), event) for event in events]
        lane_of = {origin: self.rng.randrange(4) for origin in sorted({origin for origin, _ in placed})}
        parts: list[list[Fields]] = [[] for _ in storages]
        for origin, event in placed:
            part = parts[lane_of[origin]]
            part.append({**event, ORIGIN: origin, NUMBER: 2 * len(part)})
        try:
            given, carried_over, flows, notices = self._together(policy, held, parts, now, storages, lane_of)
            self.together += 1
        except OneLaneNeeded:
            self.alone += 1
            lane = VerifiedLane(policy, held, now, storages[0])
            for origin, event in placed:
                list(lane.feed(named([{**event, ORIGIN: origin}])))
            given, carried_over = [_rows(lane.finish())], lane.carry_over()
            flows, notices = lane.flows, tuple(lane.notices)
        inline = {name: content for storage in storages for name, content in storage.new_inline.items()}
        after = manifest.with_batch(self.batch, "q", carried_over, inline.items())
        self.manifest, self.batch = after.to_json(), self.batch + 1
        left = after.partitions.get("shop", CarriedState(state))
        assert isinstance(left.state, VerifiedState)
        assert set(left.places) == {blob.number for blob in left.state.blobs}
        return given, flows, notices, replace(left.state, blobs=(), next_blob=0)

    def _together(
        self,
        policy: VerifiedPolicy,
        held: dict[str, CarriedState],
        parts: list[list[Fields]],
        now: float,
        storages: list[SpillStorage],
        lane_of: dict[str, int],
    ) -> tuple[list[list[Fields]], dict[str, CarriedState], VerifiedCounters, tuple[Event, ...]]:
        proofs = []
        for part in parts:
            lane = ProvingLane(now, SpillStorage(MemoryDirectory(), "s"))
            lane.feed(named(part))
            lane.finish()
            proofs.append({name: read_proof(content) for name, content in lane.proofs().items()})
        judged = judge_together(policy, held, storages[0], now, proofs, lambda origin: lane_of.get(origin, 0))
        given, shares = [], []
        for part, verdicts, storage in zip(parts, judged.verdicts, storages, strict=True):
            again = ProvingLane(now, SpillStorage(MemoryDirectory(), "s"))
            for event in self.rng.sample(part, len(part)):
                again.feed(named([event]))
            again.finish()
            loading = LoadingLane(held, storage, verdicts)
            loading.take(again.segments)
            given.append(_rows(loading.finish()))
            shares.append(loading.carry_over())
        return given, judged.carried(shares), judged.flows, judged.notices


def origin_of(event: Fields) -> str:
    """The partition of a topic: rows with one text are in one of them."""
    return "tx-0" if "status" in event else f"{event['collection']}-{zlib.crc32(event['row'].encode()) % 3}"


def named(events: Sequence[Fields]) -> pa.Table:
    further = pa.schema([*EVENTS, (ORIGIN, pa.string()), (NUMBER, pa.int64())])
    named = pa.Table.from_pylist(list(events), schema=further)
    return named.add_column(0, SOURCE_PARTITION, pa.repeat("shop", named.num_rows))


def _rows(released: Iterable[ReleasedRows]) -> list[Fields]:
    return [
        {SOURCE_PARTITION: name} | {column: value for column, value in row.items() if column != EVENT_TIME}
        for part in released
        for name, rows in part.by_partition()
        for row in rows.to_pylist()
    ]


@dataclass
class Stage:
    """The rules with a state store around them; the state passes through bytes at every step, as over a restart.

    A lane that gets the same events must do the same.
    """

    open_timeout: float | None = None
    on_open_timeout: str = "quarantine"
    dead_letter_table: str | None = None
    header: str = field(default_factory=lambda: VerifiedState().to_json())
    blobs: dict[int, bytes] = field(default_factory=dict)
    out: list[Fields] = field(default_factory=list)
    letters: list[Fields] = field(default_factory=list)
    notices: list[Event] = field(default_factory=list)
    counted: VerifiedCounters = field(default_factory=VerifiedCounters)
    level: VerifiedCounters = field(default_factory=VerifiedCounters)
    twin: Twin = field(default_factory=Twin)
    lanes: Lanes = field(default_factory=Lanes)

    def feed(self, *events: Fields, now: float = 0.0) -> list[Fields]:
        policy = VerifiedPolicy(self.open_timeout, self.on_open_timeout, self.dead_letter_table)  # type: ignore[arg-type]
        state = VerifiedState.from_json(self.header)
        try:
            step = VerifiedAssembler(policy, "shop").feed(state, table(events), now, self._blob)
        except StarRocksSinkError as error:
            with pytest.raises(type(error), match=re.escape(str(error))):
                self.twin.feed(policy, state, events, now)
            with pytest.raises(type(error)):
                self.lanes.feed(policy, state, events, now)
            raise
        twin = self.twin.feed(policy, state, events, now)
        rows = [row for part in step.released for row in part.to_pylist()]
        self.out += rows
        letters = [row for part in step.dead_letters for row in part.to_pylist()]
        self.letters += letters
        given, lane, after = twin
        named = [({SOURCE_PARTITION: "shop"}, rows), ({SOURCE_PARTITION: "shop#quarantine"}, letters)]
        assert given == [name | row for name, some in named for row in some]
        assert tuple(lane.notices) == step.notices
        assert lane.flows == replace(step.counters, open=0, open_rows=0, state_bytes=0)
        assert after == replace(step.state, blobs=(), next_blob=0)
        self._compare_lanes(policy, state, events, now, given, lane, after)
        for number in step.removed:
            del self.blobs[number]
        self.blobs.update({number: to_blob(part) for number, part in step.added.items()})
        self.header = step.state.to_json()
        self.notices += step.notices
        self.counted, self.level = self.counted + step.counters, step.counters
        assert {blob.number for blob in step.state.blobs} == set(self.blobs)
        return rows

    def _compare_lanes(
        self,
        policy: VerifiedPolicy,
        state: VerifiedState,
        events: Sequence[Fields],
        now: float,
        rows: list[Fields],
        lane: VerifiedLane,
        after: VerifiedState,
    ) -> None:
        """Several lanes give out what one lane does, the rows with one text in its order."""
        by_lane, flows, notices, left = self.lanes.feed(policy, state, events, now)
        assert (flows, left) == (lane.flows, after)
        assert sorted(map(repr, notices)) == sorted(map(repr, lane.notices))
        assert sorted(map(_unit_and_row, rows)) == sorted(_unit_and_row(row) for part in by_lane for row in part)
        assert _numbers(rows) == _numbers(row for part in by_lane for row in part)
        lanes: dict[tuple[str, int], set[int]] = {}
        for lane_number, part in enumerate(by_lane):
            for row in part:
                if row["table"] is not None and row[SOURCE_PARTITION] == "shop":
                    origin = row["table"], zlib.crc32(row["row"].encode()) % 3
                    lanes.setdefault(origin, set()).add(lane_number)
        assert all(len(met) == 1 for met in lanes.values())
        order = {_unit_and_row(row): place for place, row in enumerate(rows)}
        for part in by_lane:
            for name in {row[SOURCE_PARTITION] for row in part}:
                mine = [row for row in part if row[SOURCE_PARTITION] == name]
                places = [order[_unit_and_row(row)] for row in mine]
                assert places == sorted(places)
                last = {row["position"]: place for place, row in enumerate(mine)}
                ends = [last[row["position"]] == place for place, row in enumerate(mine)]
                assert [row["transaction_end"] for row in mine] == ends

    def _blob(self, number: int) -> pa.Table:
        return from_blob(self.blobs[number])

    @property
    def state(self) -> VerifiedState:
        return VerifiedState.from_json(self.header)

    def places(self) -> list[tuple[Any, ...]]:
        return [(row["txn_id"], row["position"], row["seq"], row["transaction_end"]) for row in self.out]

    def adds_up(self) -> bool:
        c = self.counted
        out = c.rows + c.repeated_rows + c.skipped_rows + c.quarantined_rows + c.late_rows
        return c.data + c.snapshot_rows == out + self.level.open_rows and c.rows == len(self.out)


def _unit_and_row(row: Fields) -> tuple[str, ...]:
    """Without the number in the unit where it is that of arrival: of rows of a snapshot, and of dead letters."""
    arrived = row["op"] == "r" or row[SOURCE_PARTITION] == "shop#quarantine"
    left_out = {"transaction_end", "seq"} if arrived else {"transaction_end"}
    return tuple(str(value) for name, value in sorted(row.items()) if name not in left_out)


def _numbers(rows: Iterable[Fields]) -> list[tuple[Any, ...]]:
    return sorted((row[SOURCE_PARTITION], row["position"], row["seq"]) for row in rows)


@dataclass(frozen=True)
class Transaction:
    """`tables` are the collections of its rows, in order; `lsn` that of its commit; `flaw` what is wrong with it."""

    number: int
    tables: tuple[str, ...]
    flaw: str | None = None

    @property
    def txn(self) -> str:
        return str(700 + self.number)

    @property
    def lsn(self) -> int:
        return 1000 + 10 * self.number

    def row_position(self, place: int) -> int:
        """Of its row number `place`, from 0; two neighbours share one."""
        return self.lsn - 500 + place // 2

    def events(self) -> list[Fields]:
        """Its rows and its END, whose sequence is its number."""
        rows = [row(self.txn, n, name, self.lsn - 500 + n) for n, name in enumerate(self.tables, 1)]
        counted = {name: self.tables.count(name) for name in self.tables}
        return FLAWS[self.flaw](rows, end(self.txn, 100 * self.number, self.lsn, counted))

    def output(self) -> list[tuple[Any, ...]]:
        last = len(self.tables) - 1
        return [(self.txn, self.lsn, seq, seq == last) for seq in range(len(self.tables))]


def _count_off(rows: list[Fields], marker: Fields, by: int) -> list[Fields]:
    return [*rows, marker | {"event_count": marker["event_count"] + by}]


FLAWS: dict[str | None, Callable[[list[Fields], Fields], list[Fields]]] = {
    None: lambda rows, marker: [*rows, marker],
    "no END": lambda rows, _: rows,
    "first row missing": lambda rows, marker: [*rows[1:], marker],
    "last row missing": lambda rows, marker: [*rows[:-1], marker],
    "count too high": lambda rows, marker: _count_off(rows, marker, 1),
    "count too low": lambda rows, marker: _count_off(rows, marker, -1),
    "a row too many": lambda rows, marker: [*rows, rows[0] | {"total_order": len(rows) + 1}, marker],
    "gap": lambda rows, marker: [*rows[:-1], rows[-1] | {"total_order": len(rows) + 1}, marker],
    "two at one place": lambda rows, marker: [*rows, rows[0] | {"row": "{}"}, marker],
    "another table": lambda rows, marker: [*rows[:-1], rows[-1] | {"collection": "public.z"}, marker],
    "table uncounted": lambda rows, marker: [*rows, marker | {"data_collections": marker["data_collections"][1:]}],
}


@dataclass
class Connector:
    """Debezium: it sends `transactions`, and after a crash goes on behind an offset that it had stored.

    PostgreSQL's BEGIN has the position of the first row (`begins_with_row`), and an offset is a position: rows that
    share one are sent again together. MySQL's has another, and an offset may stand between such rows.

    `sent` are its events in their order, as (topic, event). A restart sends the BEGIN of a cut transaction again, and
    numbers and counts the rest of the rows alone.
    """

    transactions: Sequence[Transaction]
    begins_with_row: bool = True
    sent: list[tuple[str, Fields]] = field(default_factory=list)
    clock: int = 0

    def stored(self, offset: int) -> int:
        """The last offset up to `offset` that the connector can go on from."""
        at = 0
        for transaction in self.transactions:
            place = offset - at - 1
            if self.begins_with_row and 0 < place < len(transaction.tables) and place % 2:
                return offset - 1
            at += len(transaction.tables) + 2
        return offset

    def run(self, offset: int, until: int) -> None:
        """Send what stands behind `offset` (of the source's BEGINs, rows and ENDs, from 0), up to `until`."""
        at = 0
        self.clock += 1000
        for transaction in self.transactions:
            whole = at + len(transaction.tables) + 2
            if offset < whole:
                self._deliver(transaction, max(0, offset - at - 1), until - at)
            at = whole

    @property
    def events(self) -> int:
        return sum(len(transaction.tables) + 2 for transaction in self.transactions)

    def _deliver(self, transaction: Transaction, skipped: int, until: int) -> None:
        rest = list(enumerate(transaction.tables))[skipped:]
        counts = {name: sum(1 for _, other in rest if other == name) for _, name in rest}
        markers = sum("status" in event for _, event in self.sent)
        events = [
            ("markers", begin(transaction.txn, markers, transaction.row_position(0) - (not self.begins_with_row))),
            *(
                (
                    name,
                    row(
                        transaction.txn,
                        n,
                        name,
                        transaction.row_position(place),
                        row=f'{{"t": "{transaction.txn}", "n": {place + 1}}}',
                    ),
                )
                for n, (place, name) in enumerate(rest, 1)
            ),
            ("markers", end(transaction.txn, markers + 1, transaction.lsn, counts)),
        ]
        left = until if skipped == 0 else until - skipped
        for topic, event in events[: max(0, left)]:
            self.clock += 1
            self.sent.append((topic, event | {"timestamp": self.clock}))


def repeated_later(transactions: Sequence[Transaction]) -> list[Fields]:
    """All events of `transactions` once more, ENDs under new sequences, as after a connector that went back."""
    again = [event for transaction in transactions for event in transaction.events()]
    return [event | ({"sequence": 10**6 + n} if "sequence" in event else {}) for n, event in enumerate(again)]
