"""A Debezium-like source for tests: transactions as plain values, their events in any order, and what must come out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest

from starrocks_txn_sink.assembler.rules.model import SOURCE_PARTITION, Counters, from_blob, to_blob
from starrocks_txn_sink.assembler.rules.spill import CarriedState, Manifest, SpillStorage
from starrocks_txn_sink.assembler.verified.intake import EVENTS, VerifiedState
from starrocks_txn_sink.assembler.verified.lane import HELD_BYTES, VerifiedLane
from starrocks_txn_sink.assembler.verified.rules import VerifiedAssembler, VerifiedPolicy
from starrocks_txn_sink.errors import StarRocksSinkError
from starrocks_txn_sink.rows.columns import EVENT_TIME
from starrocks_txn_sink.telemetry import Event
from tests.support.memory_directory import MemoryDirectory

Fields = dict[str, Any]


def row(txn: str, order: int, collection: str = "public.a", lsn: int = 5, **fields: Any) -> Fields:
    table: str | None = collection.split(".")[1]
    content = f'{{"t": "{txn}", "n": {order}}}'
    base = {"txn_id": txn, "total_order": order, "collection": collection, "position": lsn}
    return base | {"table": table, "op": "c", "row": content} | fields


def end(txn: str, sequence: int, lsn: int | None, tables: dict[str, int], **fields: Any) -> Fields:
    listed = [{"data_collection": name, "event_count": n} for name, n in tables.items()]
    base = {"status": "END", "txn_id": txn, "sequence": sequence, "position": lsn}
    return base | {"event_count": sum(tables.values()), "data_collections": listed} | fields


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
            named_chunk = table(chunk)
            assert not list(
                lane.feed(named_chunk.add_column(0, SOURCE_PARTITION, pa.repeat("shop", named_chunk.num_rows)))
            )
        rows = [
            {SOURCE_PARTITION: name} | {column: value for column, value in row.items() if column != EVENT_TIME}
            for part in lane.finish()
            for name, rows in part.by_partition()
            for row in rows.to_pylist()
        ]
        after = manifest.with_batch(self.batch, "q", lane.carry_over(), storage.new_inline.items())
        storage.close()
        self.manifest, self.batch = after.to_json(), self.batch + 1
        lane_state = after.partitions["shop"].state
        assert isinstance(lane_state, VerifiedState)
        assert set(after.partitions["shop"].places) == {blob.number for blob in lane_state.blobs}
        return rows, lane, replace(lane_state, blobs=(), next_blob=0)


@dataclass
class Stage:
    """The rules with a state store around them; the state passes through bytes at every step, as over a restart.

    A lane that gets the same events must do the same.
    """

    open_timeout: float | None = None
    on_open_timeout: str = "quarantine"
    dead_letter_table: str | None = None
    new_sources: tuple[str, ...] | None = ()
    header: str = field(default_factory=lambda: VerifiedState().to_json())
    blobs: dict[int, bytes] = field(default_factory=dict)
    out: list[Fields] = field(default_factory=list)
    letters: list[Fields] = field(default_factory=list)
    notices: list[Event] = field(default_factory=list)
    counted: Counters = field(default_factory=Counters)
    level: Counters = field(default_factory=Counters)
    twin: Twin = field(default_factory=Twin)

    def feed(self, *events: Fields, now: float = 0.0) -> list[Fields]:
        policy = VerifiedPolicy(
            self.open_timeout,
            self.on_open_timeout,  # type: ignore[arg-type]
            self.dead_letter_table,
            self.new_sources,
        )
        state = VerifiedState.from_json(self.header)
        try:
            step = VerifiedAssembler(policy, "shop").feed(state, table(events), now, self._blob)
        except StarRocksSinkError as error:
            with pytest.raises(type(error), match=re.escape(str(error))):
                self.twin.feed(policy, state, events, now)
            raise
        twin = self.twin.feed(policy, state, events, now)
        rows = [row for part in step.released for row in part.to_pylist()]
        self.out += rows
        letters = [row for part in step.dead_letters for row in part.to_pylist()]
        self.letters += letters
        rows_given, lane, after = twin
        by_source = [({SOURCE_PARTITION: "shop"}, rows), ({SOURCE_PARTITION: "shop#quarantine"}, letters)]
        assert rows_given == [name | row for name, rows in by_source for row in rows]
        assert tuple(lane.notices) == step.notices
        assert lane.flows == replace(step.counters, open=0, open_rows=0, state_bytes=0)
        assert after == replace(step.state, blobs=(), next_blob=0)
        for number in step.removed:
            del self.blobs[number]
        self.blobs.update({number: to_blob(part) for number, part in step.added.items()})
        self.header = step.state.to_json()
        self.notices += step.notices
        self.counted, self.level = self.counted + step.counters, step.counters
        assert {blob.number for blob in step.state.blobs} == set(self.blobs)
        return rows

    def _blob(self, number: int) -> pa.Table:
        return from_blob(self.blobs[number])

    @property
    def state(self) -> VerifiedState:
        return VerifiedState.from_json(self.header)

    @property
    def held_events(self) -> int:
        return sum(blob.events for blob in self.state.blobs)

    @property
    def waiting(self) -> list[Fields]:
        """The held events that are no part of what has the id of a settled transaction."""
        held = [event for number in self.blobs for event in self._blob(number).to_pylist()]
        return [event for event in held if event["txn_id"] not in self.state.settled.ids]

    def places(self) -> list[tuple[Any, ...]]:
        return [(row["txn_id"], row["position"], row["seq"], row["transaction_end"]) for row in self.out]

    def adds_up(self) -> bool:
        c = self.counted
        out = c.rows + c.repeated_rows + c.skipped_rows + c.quarantined_rows + c.late_rows
        return c.data + c.snapshot_rows == out + self.level.open_rows and c.rows == len(self.out)


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
        counts = {name: self.tables.count(name) for name in self.tables}
        return FLAWS[self.flaw](rows, end(self.txn, 100 * self.number, self.lsn, counts))

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
        remaining = list(enumerate(transaction.tables))[skipped:]
        counts = {name: sum(1 for _, table in remaining if table == name) for _, name in remaining}
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
                for n, (place, name) in enumerate(remaining, 1)
            ),
            ("markers", end(transaction.txn, markers + 1, transaction.lsn, counts)),
        ]
        count = until if skipped == 0 else until - skipped
        for topic, event in events[: max(0, count)]:
            self.clock += 1
            self.sent.append((topic, event | {"timestamp": self.clock}))


def repeated_later(transactions: Sequence[Transaction]) -> list[Fields]:
    """All events of `transactions` once more, ENDs under new sequences, as after a connector that went back."""
    again = [event for transaction in transactions for event in transaction.events()]
    return [event | ({"sequence": 10**6 + n} if "sequence" in event else {}) for n, event in enumerate(again)]
