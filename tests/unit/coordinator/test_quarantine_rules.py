"""Quarantine in the pure core: rejected source transactions are dead-lettered whole, and nothing else changes."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink.coordinator.coordinator import Phase, SharedTransactionCoordinator
from starrocks_txn_sink.coordinator.model import PositionSpan, RegionRows, RowIndex
from starrocks_txn_sink.coordinator.quarantine import Quarantine
from starrocks_txn_sink.coordinator.write_buffer import WriteBuffer
from starrocks_txn_sink.errors import InputError, RowsRejected
from starrocks_txn_sink.protocol.dead_letters import DEAD_LETTER_TABLE
from starrocks_txn_sink.protocol.label import labels
from starrocks_txn_sink.rows.keys import KeyColumn, TableKey
from tests.support.depth import examples
from tests.support.lane_driver import LaneDriver, small_limits
from tests.support.model_server import Fault, ModelServer, Task

Transactions = list[tuple[str, int, dict[str, list[dict[str, Any]]]]]
"""(source partition, position, rows by table) in the lane's order."""


class Judging(ModelServer):
    """A server that rejects rows which say that they are bad; `versions` are the rows of each commit."""

    def _refuse_commit(self, task: Task, fault: Fault | None) -> str | None:
        for table, body in task.loads:
            if table != DEAD_LETTER_TABLE and any(row.get("bad") for row in orjson.loads(body)):
                return "abnormal data more than max filter rate, tracking_url: http://be/x"
        return super()._refuse_commit(task, fault)


class QuarantineDriver(LaneDriver):
    """Feeds runs of source transactions, as the segmenter does: one piece a table, marked."""

    def __init__(
        self,
        server: ModelServer,
        most: int = 100,
        seed: int = 0,
        keys: Mapping[str, TableKey] | None = None,
        **limits: Any,
    ) -> None:
        super().__init__(server, small_limits(**limits), seed, keys=keys)
        self.quarantine = Quarantine("job", 3, most, lambda: "2026-01-01 00:00:00", lambda table: f"columns of {table}")
        self.core = SharedTransactionCoordinator(
            "job",
            0,
            3,
            WriteBuffer(small_limits(**limits), (lambda _: True) if keys else None, (keys or {}).keys()),
            labels("job", "e", 0, 3, 1),
            self.rng,
            self.clock.wall,
            quarantine=self.quarantine,
        )

    def feed(self, run: Transactions) -> None:
        partition = run[0][0]
        for table in dict.fromkeys(table for _, _, tables in run for table in tables):
            rows = [(at, b"," + orjson.dumps(row)) for _, at, tables in run for row in tables.get(table, ())]
            offsets = np.cumsum([7, *(len(text) for _, text in rows)])  # offsets count from anywhere
            row_index = RowIndex(np.array([at for at, _ in rows]), offsets)
            while self.core.saturated and self.step():
                pass
            piece = memoryview(b"".join(text for _, text in rows))
            self.core.take(RegionRows(partition, table, piece, len(rows), row_index), self.clock.monotonic())
        positions = [at for _, at, _ in run]
        ended = PositionSpan(partition, positions[0], positions[-1], len(run), f"digest {partition} {positions[-1]}")
        self.core.take(ended, self.clock.monotonic())


def visible(server: ModelServer, table: str) -> list[dict[str, Any]]:
    return list(server.store.tables.get(table, []))


@st.composite
def runs(draw: st.DrawFn) -> list[Transactions]:
    made = []
    for partition in range(draw(st.integers(1, 3))):
        position = 0
        for _ in range(draw(st.integers(1, 3))):
            run: Transactions = []
            for _ in range(draw(st.integers(1, 6))):
                position += draw(st.integers(1, 3))
                shape = draw(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), min_size=1, max_size=4))
                tables: dict[str, list[dict[str, Any]]] = {}
                for seq, (table, luck) in enumerate(shape):
                    row = {"p": f"p{partition}", "x": position, "s": seq} | ({"bad": True} if luck == 0 else {})
                    tables.setdefault(table, []).append(row)
                run.append((f"p{partition}", position, tables))
            made.append(run)
    return made


@examples(150)
@given(runs(), st.integers(0, 2**32), st.sampled_from([None, 60, 300]))
def test_the_bad_are_dead_lettered_whole_and_the_good_are_there_once_in_order(
    feed: list[Transactions], seed: int, close_bytes: int | None
) -> None:
    server = Judging(generation="B" if seed % 2 else "C")
    lane = QuarantineDriver(server, seed=seed, close_bytes=close_bytes)
    for run in feed:
        lane.feed(run)
        if seed % 3 == 0:
            lane.step()
    lane.finish()
    assert lane.core.error is None
    assert lane.core.buffer.buffered_bytes == 0
    everything = [one for run in feed for one in run]
    bad = {(p, x) for p, x, tables in everything if any(row.get("bad") for rows in tables.values() for row in rows)}
    for table in "abc":
        good = [row for p, x, tables in everything if (p, x) not in bad for row in tables.get(table, ())]
        found = visible(server, table)
        for partition in ("p0", "p1", "p2"):  # source partitions have no order among each other
            assert [r for r in found if r["p"] == partition] == [r for r in good if r["p"] == partition]
    dead_letters = visible(server, DEAD_LETTER_TABLE)
    kept = [(one["table_name"], orjson.loads(one["content"])) for one in dead_letters]
    expected = [(t, row) for p, x, tables in everything if (p, x) in bad for t, rows in tables.items() for row in rows]
    assert sorted(map(repr, kept)) == sorted(map(repr, expected))
    assert len({one["id"] for one in dead_letters}) == len(dead_letters)
    receipts = lane.core.receipts
    assert sum(receipt.source_transactions for receipt in receipts) == len(everything) - len(bad)
    assert sum(receipt.dead_lettered_transactions for receipt in receipts) == len(bad)
    assert sum(receipt.dead_lettered_rows for receipt in receipts) == len(dead_letters)
    assert sum(receipt.rows for receipt in receipts) + len(dead_letters) == sum(
        len(rows) for _, _, tables in everything for rows in tables.values()
    )
    reached: dict[str, int] = {}
    for receipt in receipts:
        for span in receipt.positions:
            assert span.first > reached.get(span.partition, 0)
            reached[span.partition] = span.last
    assert reached == {p: x for p, x, _ in everything}
    last = {span.partition: span.digest for receipt in receipts for span in receipt.positions}
    assert last == {p: f"digest {p} {x}" for p, x, _ in everything}


@examples(150)
@given(runs(), st.integers(0, 2**32), st.sampled_from([None, 60, 300]), st.sampled_from([1, 100, 500]))
def test_rows_of_a_key_replace_each_other_among_the_good_and_dead_letters_are_whole(
    feed: list[Transactions], seed: int, close_bytes: int | None, load_bytes: int
) -> None:
    for _, _, tables in (one for run in feed for one in run):
        for rows in tables.values():
            for row in rows:
                row["k"] = f"{row['p']}/{row['s'] % 2}"
    server = Judging()
    keys = {"a": [KeyColumn.of("k", "VARCHAR", None)]}
    lane = QuarantineDriver(
        server, seed=seed, keys=keys, close_bytes=close_bytes, load_bytes=load_bytes, chunk_bytes=100, body_bytes=150
    )
    for run in feed:
        lane.feed(run)
        if seed % 3:
            lane.settle()
    lane.finish()
    assert lane.core.error is None
    everything = [one for run in feed for one in run]
    dead_letters = visible(server, DEAD_LETTER_TABLE)
    dead = {(one["source_partition"], one["position"]) for one in dead_letters}
    rows_of = {(p, x): [row for rows in tables.values() for row in rows] for p, x, tables in everything}
    assert len(dead_letters) == sum(len(rows_of[place]) for place in dead)
    assert all(any(row.get("bad") for row in rows_of[place]) for place in dead)
    good = [row for p, x, tables in everything if (p, x) not in dead for row in tables.get("a", ())]
    found = visible(server, "a")
    assert {row["k"]: (row["x"], row["s"]) for row in found} == {row["k"]: (row["x"], row["s"]) for row in good}
    assert not any(row.get("bad") for row in found)
    for label in server.commits:
        task = server.tasks.get(label) or server.history[label]
        sent = [row["k"] for table, body in task.loads if table == "a" for row in orjson.loads(body)]
        assert len(sent) == len(set(sent))
    receipts = lane.core.receipts
    counted = sum(receipt.rows + receipt.compacted + receipt.dead_lettered_rows for receipt in receipts)
    assert counted == sum(map(len, rows_of.values()))


def one_transaction(position: int, bad: bool = False, filler: str = "") -> Transactions:
    return [
        ("p", position, {"a": [{"x": position, "f": filler} | ({"bad": True} if bad else {})], "b": [{"x": position}]})
    ]


def test_dead_letters_travel_with_the_rows_that_follow() -> None:
    server = Judging()
    lane = QuarantineDriver(server)
    lane.feed([*one_transaction(1), *one_transaction(2, bad=True), *one_transaction(3)])
    lane.finish()
    assert [(receipt.rows, receipt.dead_lettered_rows) for receipt in lane.core.receipts] == [(2, 0), (2, 2)]
    letter = visible(server, DEAD_LETTER_TABLE)[0]
    assert (letter["source_partition"], letter["position"], letter["table_name"]) == ("p", 2, "a")
    assert letter["load_columns"] == "columns of a"
    assert "abnormal data" in letter["reason"]
    assert letter["label"].startswith("job-e-0-3-")


def test_a_rejected_row_keeps_every_byte() -> None:
    server = Judging()
    lane = QuarantineDriver(server)
    piece = b',{"n":1.10000000000000000001, "bad" : true}'
    row_index = RowIndex(np.array([5]), np.array([0, len(piece)]))
    lane.core.take(RegionRows("p", "a", memoryview(piece), 1, row_index), 0.0)
    lane.core.take(PositionSpan("p", 5, 5, 1), 0.0)
    lane.finish()
    assert visible(server, DEAD_LETTER_TABLE)[0]["content"] == piece[1:].decode()


def test_too_many_bad_ones_end_the_lane_with_advice() -> None:
    lane = QuarantineDriver(Judging(), most=2)
    lane.feed([one for position in range(1, 9) for one in one_transaction(position, bad=True)])
    lane.finish()
    assert isinstance(lane.core.error, RowsRejected)
    assert "max_quarantined (2) is reached" in str(lane.core.error)


def test_a_source_transaction_beyond_the_retry_buffer_is_not_dead_lettered_in_silence() -> None:
    server = Judging()
    lane = QuarantineDriver(server, retry_buffer_bytes=100)
    lane.feed(one_transaction(1, bad=True, filler="x" * 200))
    lane.finish()
    assert isinstance(lane.core.error, RowsRejected)
    assert "Raise retry_buffer_bytes" in str(lane.core.error)
    assert "source_positions=p 1 to 1" in str(lane.core.error)  # the server names no place in the source
    assert lane.core.phase is Phase.FAILED
    assert lane.core.receipts == []
    assert (len(server.tasks), server.open_labels()) == (1, [])  # not tried again


def test_a_row_beyond_the_dead_letter_column_ends_the_lane() -> None:
    lane = QuarantineDriver(Judging(), retry_buffer_bytes=10**7)
    lane.feed(one_transaction(1, bad=True, filler="x" * 1_100_000))
    lane.finish()
    assert isinstance(lane.core.error, InputError)
    assert "too large for the dead-letter table" in str(lane.core.error)


def test_a_rejected_dead_letter_table_ends_the_lane() -> None:
    class Full(Judging):
        def _refuse_commit(self, task: Task, fault: Fault | None) -> str | None:
            if any(table == DEAD_LETTER_TABLE for table, _ in task.loads):
                return "too many filtered rows"
            return super()._refuse_commit(task, fault)

    lane = QuarantineDriver(Full())
    lane.feed(one_transaction(1, bad=True))
    lane.finish()
    assert isinstance(lane.core.error, RowsRejected)


def test_one_bad_one_in_a_thousand_costs_few_commits() -> None:
    server = Judging()
    lane = QuarantineDriver(server, buffer_bytes=10**6, retry_buffer_bytes=10**6)
    lane.feed([one for position in range(1, 1001) for one in one_transaction(position, bad=position == 700)])
    lane.finish()
    assert lane.core.error is None
    assert sum(request.operation.value == "commit" for request in server.requests) <= 22
    assert sum(receipt.rows for receipt in lane.core.receipts) == 1998


@pytest.mark.parametrize("seed", [random.randrange(10**6)])
def test_faults_on_the_way_change_nothing(seed: int) -> None:
    rng = random.Random(seed)
    plan = {n: rng.choice([Fault.REFUSED, Fault.LOST_AFTER]) for n in rng.sample(range(60), 5)}
    counter = iter(range(10**6))

    def faults(request: Any) -> Fault | None:
        return plan.get(next(counter)) if request.operation.value == "load" else None

    server = Judging(faults=faults)
    lane = QuarantineDriver(server, seed=seed, max_attempts=20)
    lane.feed([one for position in range(1, 30) for one in one_transaction(position, bad=position % 11 == 0)])
    lane.finish()
    assert lane.core.error is None, lane.core.error
    assert [row["x"] for row in visible(server, "b")] == [x for x in range(1, 30) if x % 11]
    assert len(visible(server, DEAD_LETTER_TABLE)) == 4
