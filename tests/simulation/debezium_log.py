"""The source as Debezium's messages: whole source transactions with their markers, or changes alone.

With `whole` the messages of a connector go through a topic for each table and one for the markers, which are read at
different speeds. The connector is killed in the middle of transactions, and sends the rest of them again with a BEGIN
and an END of its own, or transactions that it has sent before. Without, each change is a source transaction by itself,
at its offset, with messages between them that have no row.

In the end something may follow in the same topics: a database that was set back, with lower places, as a source
partition of its own, with ids of its own or the very ids of before, GTIDs among them (RESET MASTER); or another server
that took over, whose log has lower places and whose GTIDs are new.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from random import Random
from typing import Any, Literal

import orjson
import pyarrow as pa

from starrocks_txn_sink.assembler.verified.sources import begins
from starrocks_txn_sink.sources.kafka.ranges import OffsetRanges

from .event_log import Event, EventSource, sliced
from .source import Cut, Row, SourceTransaction, further_transactions

_MARKERS = "transaction"
_FIRST_ID = 700
_SERVERS = ("5a1f0c3e-0000-4000-8000-00000000000a", "5a1f0c3e-0000-4000-8000-00000000000b")

Follow = Literal["", "set_back", "same_ids", "reset", "taken_over"]
"""What follows in the end; all transactions have GTIDs where a server is to be `reset` or `taken_over`."""
_NO_ROWS = (None, {"ts_ms": 1}, {"ddl": "ALTER …", "tableChanges": []})


@dataclass(slots=True)
class DebeziumSource(EventSource):
    """`proofs[i]` says of each source transaction of source partition i from where on its messages prove it."""

    proofs: list[list[Proof]] = field(default_factory=list)
    followed: list[int] = field(default_factory=list)  # of each further source the source partition in Kafka
    declared: Sequence[str] = ()  # the further sources that the driver knows which acknowledges a micro-batch

    def ended(self, partition: int, slices: int) -> int:
        """How many source transactions the first `slices` slices prove for certain, with all before them."""
        return self._proved(partition, partition, slices)

    def ended_later(self, cut: Cut) -> Cut:
        """How many those of each source that follows another one prove. What is not declared may wait for it."""
        further = enumerate(self.followed, len(self.slices))
        return tuple(
            self._proved(number, partition, cut[partition]) if self.truth[number][0].partition in self.declared else 0
            for number, partition in further
        )

    def _proved(self, number: int, partition: int, slices: int) -> int:
        read = [event["position"] for events in self.slices[partition][:slices] for event in events]
        end = read[-1] + 1 if read else 0
        return sum(takewhile(bool, (proof.holds(end) for proof in self.proofs[number])))


@dataclass(frozen=True, slots=True)
class Proof:
    """A source transaction is proved by the messages in front of the offset `needed`.

    They are its own, and those of all that was sent before: what comes again may be another source's. It is not proved,
    as long as rows of a further delivery are read, and the BEGIN of this delivery is not: `strays` has the
    offsets of such rows, and of their BEGIN.
    """

    needed: int
    strays: tuple[tuple[int, int], ...] = ()

    def holds(self, end: int) -> bool:
        return self.needed <= end and not any(row < end <= begin for row, begin in self.strays)


def debezium_source(
    truth: list[list[SourceTransaction]], rng: Random, *, whole: bool, follow: Follow = ""
) -> DebeziumSource:
    """The messages of `truth`, or, without `whole`, of its rows, each of which is then a source transaction.

    With `follow` the database of each source partition goes on differently in the end.
    """
    if whole:
        logs = [_whole(transactions, rng, follow) for transactions in truth]
    else:
        logs = [_single(transactions, rng) for transactions in truth]
    slices = [sliced(events, rng) for events, _, _ in logs]
    sources = [
        (number, name) for number, (_, of, _) in enumerate(logs) for name in dict.fromkeys(t.partition for t in of)
    ]
    sources.sort(key=lambda source: "@" in source[1])
    pairs = {
        name: [(t, p) for _, of, proofs in logs for t, p in zip(of, proofs, strict=True) if t.partition == name]
        for _, name in sources
    }
    return DebeziumSource(
        [[transaction for transaction, _ in pairs[name]] for _, name in sources],
        [],
        slices,
        [[proof for _, proof in pairs[name]] for _, name in sources],
        [number for number, name in sources if "@" in name],
    )


Log = tuple[list[Event], list[SourceTransaction], list[Proof]]


# --- changes alone ---


def _single(transactions: list[SourceTransaction], rng: Random) -> Log:
    source_transactions: list[SourceTransaction] = []
    events: list[Event] = []
    partition, offset = transactions[0].partition, rng.randrange(5)
    for table, content in (row for transaction in transactions for row in transaction.rows):
        while rng.random() < 0.2:
            events.append(_event(partition, offset, f"{partition}.topic", rng.choice(_NO_ROWS)))
            offset += 1
        alone = orjson.loads(content) | {"x": offset, "s": 0, "n": 1, "v": 0}  # the sum of a part is that of all
        row: Row = (table, orjson.dumps(alone))
        source_transactions.append(SourceTransaction(partition, len(source_transactions), offset, (row,)))
        events.append(_event(partition, offset, f"{partition}.topic", _change(partition, row, offset)))
        offset += rng.choice((1, 1, 3))
    return events, source_transactions, [Proof(transaction.position + 1) for transaction in source_transactions]


# --- whole source transactions ---


@dataclass(slots=True)
class _Connector:
    """Writes messages with a time each into the topics' `queues`; a message has the number of its delivery."""

    partition: str
    rng: Random
    gtids: bool = False
    new_ids: bool = True  # of a database that was set back
    now: int = 0
    taken_over: int = 0  # source transactions of the server before
    shift: int = 0  # from the places in this server's log to the released ones
    deliveries: list[_Delivery] = field(default_factory=list)
    queues: dict[str, list[tuple[int, int, dict[str, Any]]]] = field(default_factory=dict)

    def send(self, topic: str, value: dict[str, Any]) -> None:
        """A message of the newest delivery; its producer may send it twice."""
        self.now += 1
        queue = self.queues.setdefault(topic, [])
        queue += [(self.now, len(self.deliveries) - 1, value)] * (2 if self.rng.random() < 0.05 else 1)

    def deliver(
        self, transaction: SourceTransaction, first: int, upto: int, *, ended: bool = True, needed: bool = True
    ) -> None:
        """The rows `first` to `upto` of a transaction, numbered from 1; without END the connector was killed."""
        self.deliveries.append(_Delivery((transaction.partition, transaction.number), needed))
        begin = transaction.position - self.shift - len(transaction.rows) - (not self.gtids)
        if self.taken_over > transaction.number:
            begin = self.rng.randint(0, transaction.position)  # its place in the log of the server that took over
        rows = transaction.rows[first:upto]
        self.send(_MARKERS, {"status": "BEGIN", "id": self._id(transaction, begin), "ts_ms": 1})
        for order, row in enumerate(rows, 1):
            place = begin + first + order
            reference = {"id": self._id(transaction, place), "total_order": order, "data_collection_order": 1}
            self.send(row[0], self._change(row, place) | {"transaction": reference})
        if ended:
            counts = Counter(f"public.{table}" for table, _ in rows)
            listed = [{"data_collection": name, "event_count": count} for name, count in counts.items()]
            end = {
                "status": "END",
                "id": self._id(transaction, begin + len(transaction.rows) + 1),
                "event_count": len(rows),
                "data_collections": listed,
            }
            self.send(_MARKERS, end)

    def _id(self, transaction: SourceTransaction, place: int) -> str:
        number = transaction.number + 1
        if self.gtids:
            server = self.taken_over and transaction.number >= self.taken_over
            return f"{_SERVERS[bool(server)]}:{number - (self.taken_over if server else 0)}"
        others = 50 * (self.new_ids and transaction.partition != self.partition)
        return f"{_FIRST_ID + number + others}:{place}"

    def _change(self, row: Row, place: int) -> dict[str, Any]:
        change = _change(self.partition, row, place)
        if self.gtids:
            named = {"connector": "mysql", "name": self.partition, "db": "public", "table": row[0]}
            change["source"] = named | {"file": "binlog.000000", "pos": place}
        return change

    def messages(self) -> Iterator[tuple[int, int, str, dict[str, Any]]]:
        """All messages; no topic is read further ahead of the others than some of them."""
        ahead = self.rng.choice((0, 3, 12, 100))
        while self.queues:
            oldest = min(queue[0][0] for queue in self.queues.values())
            topic = self.rng.choice([name for name, queue in self.queues.items() if queue[0][0] <= oldest + ahead])
            time, delivery, value = self.queues[topic].pop(0)
            if not self.queues[topic]:
                del self.queues[topic]
            yield time, delivery, topic, value


@dataclass(slots=True)
class _Delivery:
    """A delivery of a transaction, which may be `needed`; the offsets of its BEGIN and other messages."""

    of: tuple[str, int]
    needed: bool
    begin: int = -1
    others: list[int] = field(default_factory=list)

    def take(self, offset: int, value: dict[str, Any]) -> None:
        if value.get("status") != "BEGIN":
            self.others.append(offset)
        elif self.begin < 0:
            self.begin = offset


def _whole(transactions: list[SourceTransaction], rng: Random, follow: Follow) -> Log:
    gtids = follow in ("reset", "taken_over")
    connector = _Connector(transactions[0].partition, rng, gtids, new_ids=follow != "same_ids")
    for transaction in transactions:
        _send(connector, transaction, transactions[: transaction.number], rng)
    last = transactions[-1].position
    if follow == "taken_over":
        later = further_transactions(connector.partition, last, rng, after=len(transactions))
        connector.taken_over, connector.shift = len(transactions), last + 1 - later[0].position
        later = [_moved(transaction, connector.shift) for transaction in later]
        transactions = [*transactions, *later]
        for transaction in later:
            _send(connector, transaction, transactions[: transaction.number], rng)
    elif follow:
        later = further_transactions(begins(connector.partition, connector.now + 1), last, rng)
        for transaction in later:
            _send(connector, transaction, later[: transaction.number], rng)
        transactions = [*transactions, *later]
    events: list[Event] = []
    for time, number, topic, value in connector.messages():
        connector.deliveries[number].take(len(events), value)
        events.append(_event(connector.partition, len(events), f"{connector.partition}.{topic}", value, time))
    return events, transactions, [_proof(connector.deliveries, transaction) for transaction in transactions]


def _moved(transaction: SourceTransaction, shift: int) -> SourceTransaction:
    """The same at the released position."""
    position = transaction.position + shift
    rows = [(table, orjson.dumps(orjson.loads(content) | {"x": position})) for table, content in transaction.rows]
    return replace(transaction, position=position, rows=tuple(rows))


def _proof(deliveries: list[_Delivery], transaction: SourceTransaction) -> Proof:
    same_source = [delivery for delivery in deliveries if delivery.of[0] == transaction.partition]
    same_number = [delivery for delivery in same_source if delivery.of[1] == transaction.number]
    last = max(number for number, each in enumerate(same_source) if each in same_number and each.needed)
    return Proof(
        max(max(delivery.begin, *delivery.others) + 1 for delivery in same_source[: last + 1]),
        tuple((row, delivery.begin) for delivery in same_number if not delivery.needed for row in delivery.others),
    )


def _send(connector: _Connector, transaction: SourceTransaction, before: list[SourceTransaction], rng: Random) -> None:
    """A transaction, perhaps in two deliveries or in three, and with those before it once more."""
    size, size_before = len(transaction.rows), 0
    while rng.random() < 0.3:  # killed behind row `known`; the rest begins with a row that is known
        size_before, start = rng.randint(max(size_before, 1), size), rng.randrange(size_before) if size_before else 0
        connector.deliver(transaction, start, size_before, ended=False)
        for again in before[-rng.randrange(3) :] if rng.random() < 0.5 else ():
            connector.deliver(again, 0, len(again.rows), needed=False)
    connector.deliver(transaction, rng.randrange(size_before) if size_before else 0, size)


def _change(partition: str, row: Row, lsn: int) -> dict[str, Any]:
    table, content = row
    source = {"connector": "postgresql", "name": partition, "schema": "public", "table": table, "lsn": lsn}
    return {"before": None, "after": orjson.loads(content), "source": source, "op": "c", "transaction": None}


def _event(partition: str, offset: int, topic: str, value: dict[str, Any] | None, time: int = 0) -> Event:
    text = None if value is None else orjson.dumps(value)
    return {"source_partition": partition, "position": offset, "topic": topic, "value": text, "timestamp": time}


# --- record batches ---

_MESSAGES = pa.schema(
    [
        *(("source_partition", pa.string()), ("position", pa.int64()), ("value", pa.binary()), ("topic", pa.string())),
        *(("partition", pa.int32()), ("offset", pa.int64()), ("timestamp", pa.int64())),
    ]
)


def message_batches(events: list[Event], rng: Random) -> list[pa.RecordBatch]:
    """Messages as a lane gets them from Spark's Kafka source, in record batches that end anywhere."""
    cut = rng.randrange(1, len(events)) if len(events) > 2 and rng.random() < 0.5 else len(events)
    return [_batch(part) for part in (events[:cut], events[cut:]) if part]


def read_batches(source: EventSource, ranges: OffsetRanges, rng: Random) -> list[pa.RecordBatch]:
    """The messages of `ranges` as a lane reads them from Kafka: in small pieces, source partitions by turns."""
    queues = [source.between(number, *bounds) for (_, number), bounds in ranges.ranges.items()]
    batches = []
    while queues := [queue for queue in queues if queue]:
        queue, count = rng.choice(queues), rng.randint(1, 6)
        batches.append(_batch(queue[:count]))
        del queue[:count]
    return batches


def _batch(events: list[Event]) -> pa.RecordBatch:
    rows = [event | {"partition": 0, "offset": event["position"]} for event in events]
    return pa.RecordBatch.from_pylist(rows, schema=_MESSAGES)
