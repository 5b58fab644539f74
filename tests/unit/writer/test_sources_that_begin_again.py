"""A source that begins again behind what was read: lower files, positions, and the ids of before, with other rows.

Where a message's offset is its place, all of it is new, and written: change by change, and Maxwell's whole
transactions. Where the messages have the place, as TxnEvents do, it is not what was there, and ends the query. Each
history is read in one micro-batch, and with a restart between.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from starrocks_txn_sink import CanalAssembly, DebeziumAssembly, MaxwellAssembly
from starrocks_txn_sink.assembler.rules import history
from starrocks_txn_sink.assembler.rules.incremental import IncrementalAssembler
from starrocks_txn_sink.assembler.rules.model import Counters, Policy
from starrocks_txn_sink.assembler.rules.payload import PayloadEncoder
from starrocks_txn_sink.assembler.rules.spill import Manifest
from starrocks_txn_sink.errors import InputError, SourceChanged
from starrocks_txn_sink.sources.formats.txn_events import TxnEventLines
from starrocks_txn_sink.writer.assembling import AssemblySpec
from starrocks_txn_sink.writer.worker import Attempt
from tests.support.canal_feed import flat
from tests.support.debezium_feed import change, mysql, postgres
from tests.support.maxwell_feed import row, transaction
from tests.support.memory_directory import MemoryDirectory

OLD, OTHER = "5a1f0c3e-0000-4000-8000-00000000000a", "5a1f0c3e-0000-4000-8000-00000000000b"
Messages = list[dict[str, Any]]


@dataclass(frozen=True)
class Format:
    """How the messages of a source are read; `again`: of one that begins again, with rows from 10 on."""

    rules: Any
    before: Messages
    again: Messages


def restored(first: int) -> Messages:
    """PostgreSQL: the same LSNs and transaction ids."""
    return [change(postgres("orders", 90 + n), f"7{n}:{90 + n}", 1, {"id": first + n}) for n in range(3)]


def by_gtid(server: str, file: str, first: int) -> Messages:
    places = [mysql("orders", file, 4 + n) | {"gtid": f"{server}:{1 + n}"} for n in range(3)]
    return [change(place, place["gtid"], 1, {"id": first + n}) for n, place in enumerate(places)]


def by_canal(gtid: str, first: int) -> Messages:
    return [flat("INSERT", [{"id": str(first + n)}], gtid=f"{gtid}:{1 + n}") for n in range(3)]


def by_maxwell(first: int, position: str) -> Messages:
    return [row("insert", {"id": first + n}, xid=5, position=position) for n in range(3)]


SINGLE, MAXWELL = DebeziumAssembly(transactions="none"), MaxwellAssembly(transactions="none")
FORMATS = {
    "Debezium: a database that was restored": Format(SINGLE, restored(1), restored(10)),
    "Debezium: a server that took over, with lower files": Format(
        SINGLE, by_gtid(OLD, "binlog.000009", 1), by_gtid(OTHER, "binlog.000002", 10)
    ),
    "Debezium: RESET MASTER": Format(SINGLE, by_gtid(OLD, "binlog.000009", 1), by_gtid(OLD, "binlog.000001", 10)),
    "Canal: RESET MASTER": Format(CanalAssembly(), by_canal(OLD, 1), by_canal(OLD, 10)),
    "Canal: a server that took over": Format(CanalAssembly(), by_canal(OLD, 1), by_canal(OTHER, 10)),
    "Maxwell: RESET MASTER": Format(MAXWELL, by_maxwell(1, "bin.9:400"), by_maxwell(10, "bin.1:4")),
    "Maxwell: whole transactions": Format(
        MaxwellAssembly(),
        transaction(5, *(("insert", {"id": number}) for number in (1, 2, 3))),
        transaction(5, *(("insert", {"id": number}) for number in (10, 11, 12))),
    ),
}


class Lane:
    """A lane that starts again before each micro-batch."""

    def __init__(self, rules: Any) -> None:
        self.rules, self.directory, self.manifest, self.flows = rules, MemoryDirectory(), Manifest(), Counters()

    def run(self, *values: dict[str, Any], offset: int = 0) -> list[int]:
        """The ids of the rows that the messages from `offset` on release."""
        txn_events = isinstance(self.rules, TxnEventLines)
        spec = AssemblySpec(
            IncrementalAssembler if txn_events else self.rules.assembler,
            Policy() if txn_events else self.rules.policy,
            PayloadEncoder("shop"),
            0.0,
            self.directory,
            f"s{self.manifest.batch + 1}",
            carried=self.manifest.partitions,
            inline=self.manifest.inline,
            lines=self.rules if txn_events else self.rules.lines,
        )
        lane = spec.open(Attempt(0, 0, False))
        batches = lane(iter([messages(values, offset)]))
        payloads = [each["payload"] for part in batches for each in part.to_pylist()]
        carried = lane.carry_over()
        lane.close()
        assert isinstance(carried.flows, Counters)
        self.flows += carried.flows
        after = self.manifest.with_batch(self.manifest.batch + 1, "q", carried.partitions, carried.inline.items())
        self.manifest = Manifest.from_json(after.to_json())
        return [int(json.loads(payload[1:])["id"]) for payload in payloads]


def messages(values: Iterable[dict[str, Any]], offset: int) -> pa.RecordBatch:
    texts = [json.dumps(value).encode() for value in values]
    offsets = pa.array(range(offset, offset + len(texts)), pa.int64())
    keys = pa.nulls(len(texts), pa.binary())
    return pa.RecordBatch.from_pydict(
        {
            "source_partition": ["shop-0"] * len(texts),
            "position": offsets,
            "value": pa.array(texts, pa.binary()),
            "key": keys,
            "topic": ["shop"] * len(texts),
            "partition": pa.array([0] * len(texts), pa.int32()),
            "offset": offsets,
            "timestamp": pa.array([70] * len(texts), pa.int64()),
        }
    )


@pytest.mark.parametrize("restart", [False, True], ids=["in one run", "after a restart"])
@pytest.mark.parametrize("name", FORMATS)
def test_a_source_that_begins_again_is_written(name: str, restart: bool) -> None:
    of_format = FORMATS[name]
    lane, size = Lane(of_format.rules), len(of_format.before)
    if restart:
        ids = lane.run(*of_format.before) + lane.run(*of_format.again, offset=size)
    else:
        ids = lane.run(*of_format.before, *of_format.again)
    assert ids == [1, 2, 3, 10, 11, 12]
    assert (lane.flows.repeats, lane.flows.repeated_rows, lane.flows.unknown_repeats) == (0, 0, 0)


TXN_EVENTS = TxnEventLines(source_partition=None, position=None)


def counted(first: int, count: int = 3, position: int = 1) -> Messages:
    """Transactions 1, 2, … of a producer that counts its events, with a row each."""
    events: Messages = []
    for number in range(count):
        data = {"type": "DATA", "table": "t", "op": "insert", "row": json.dumps({"id": first + number})}
        events += [{"type": "BEGIN"}, data, {"type": "END"}]
        for event in events[-3:]:
            event |= {"txn_id": str(number + 1), "source_partition": "p0"}
    return [event | {"position": position + at} for at, event in enumerate(events)]


@pytest.mark.parametrize("count", [1, 3, 7], ids=["shorter", "as long", "longer"])
def test_a_producer_that_counts_from_the_start_again_ends_the_query(count: int) -> None:
    lane = Lane(TXN_EVENTS)
    assert lane.run(*counted(1)) == [1, 2, 3]
    for _ in range(2):  # and so does the next start
        with pytest.raises(SourceChanged, match=r"other content.*position=2\b"):
            lane.run(*counted(10, count))
    with pytest.raises(InputError, match=r"have the same position.*position=2\b"):
        Lane(TXN_EVENTS).run(*counted(1), *counted(10, count))
    assert lane.run(*counted(1), *counted(4, 1, position=10)) == [4]
    assert (lane.flows.repeats, lane.flows.unknown_repeats) == (9, 0)


def test_maxwells_whole_transactions_at_offsets_of_before_are_of_another_topic() -> None:
    of_format = FORMATS["Maxwell: whole transactions"]
    lane = Lane(of_format.rules)
    lane.run(*of_format.before)
    with pytest.raises(SourceChanged, match=r"other content.*position=0\b"):
        lane.run(*of_format.again)
    assert lane.run(*of_format.before) == []
    assert (lane.flows.repeated_rows, lane.flows.unknown_repeats) == (3, 0)


def believed(_: bytes, __: object, places: history.Places, *___: object, **____: object) -> history.Verdict:
    return history.Verdict(np.ones(len(places), dtype=bool), None)


def all_new(above: history.Mask, **_: object) -> Any:
    return np.full(len(above), history.Kind.NEW, np.int8)


@pytest.mark.parametrize(("judge", "broken"), [("judge", believed), ("kinds", all_new)])
@pytest.mark.parametrize(
    "read",
    [
        lambda: test_a_producer_that_counts_from_the_start_again_ends_the_query(3),
        test_maxwells_whole_transactions_at_offsets_of_before_are_of_another_topic,
    ],
    ids=["TxnEvents", "Maxwell"],
)
def test_with_a_broken_judge_it_is_lost_or_doubled(
    judge: str, broken: Any, read: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, judge, broken)
    with pytest.raises((pytest.fail.Exception, AssertionError)):
        read()
