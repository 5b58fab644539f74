"""The quarantine's search: rejected source transactions become dead letters, every other one is committed in order."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.coordinator import coordinator as orders
from starrocks_txn_sink.coordinator.coordinator import LanesResult, RoundLimits, SharedTransactionCoordinator
from starrocks_txn_sink.coordinator.model import (
    BeginAction,
    CommitAction,
    LaneShare,
    PositionSpan,
    Receipt,
    RegionCount,
    RollbackAction,
)
from starrocks_txn_sink.coordinator.quarantine import DeadLetter, Part, Quarantine
from starrocks_txn_sink.errors import RowsRejected, StarRocksSinkError
from starrocks_txn_sink.protocol.label import Aborted, Committed
from starrocks_txn_sink.protocol.refusals import UNSAID
from tests.support.depth import examples
from tests.support.manual_clock import ManualClock

Place = tuple[str, int]
"""A source transaction, which has one row: its source partition and position."""


@dataclass
class Server:
    """Lanes and server in one: lanes load what a part and the known positions allow; labels with bad rows are rejected.

    `lanes` has the source transactions of each lane in its order, each with a row of table `table_of`. A lane reports
    at most `most` cuts of each source partition. It stops after `stops` of them: after so many new ones if it skips
    quickly (`counts_new`), or after so many that it reads. Lanes find those `judged` to be bad themselves, but those in
    `late` only when they have loaded a row of them. The server names the tables with bad rows if `tells`.
    """

    lanes: list[list[Place]]
    bad: set[Place]
    most: int = 100
    stops: int | None = None
    counts_new: bool = True
    rejects_dead_letters: bool = False
    judged: set[Place] = field(default_factory=set)
    late: set[Place] = field(default_factory=set)
    tells: bool = False
    known: dict[str, int] = field(default_factory=dict)
    read: list[int] = field(default_factory=list)  # by lane: where its rows begin in this round
    stopped_at: list[int] = field(default_factory=list)
    committed: list[Place] = field(default_factory=list)
    dead: list[Place] = field(default_factory=list)
    labels: dict[str, tuple[list[Place], set[Place]]] = field(default_factory=dict)
    open: set[str] = field(default_factory=set)
    runs: list[Part] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.read = [0] * len(self.lanes)

    def perform(self, order: orders.Order) -> object:
        match order:
            case BeginAction(label):
                assert label not in self.labels
                self.labels[label] = ([], set())
                self.open.add(label)
            case orders.RunLanes(label, part):
                self.runs.append(part)
                self.stopped_at = []
                shares = [self._share(number, label, part) for number in range(len(self.lanes))]
                places = [place for places, _ in shares for place in places]
                self.labels[label] = places, {place for place in places if self._is_aside(place, part)}
                late = {place for place in places if place in self.late and place not in part.set_aside}
                found = [{place: DeadLetter("late", label)} for place in sorted(late)]
                return LanesResult([share for _, share in shares], bad=found)
            case CommitAction(label):
                return self._commit(label)
            case RollbackAction(label):
                self.open.discard(label)
            case orders.NextRound():
                self.read = self.stopped_at
        return None

    def _is_aside(self, place: Place, part: Part) -> bool:
        return place in part.set_aside or place in self.judged

    def _share(self, number: int, label: str, part: Part) -> tuple[list[Place], LaneShare]:
        lane, places = self.lanes[number], list[Place]()
        start = self.read[number] if not self.counts_new else 0
        stopped, end = False, len(lane)
        for at in range(start, len(lane)):
            partition, position = lane[at]
            upto = math.inf if part.upto is None else part.upto.get(partition, -1)
            if self.known.get(partition, -1) < position <= upto:
                places.append((partition, position))
            count = len(places) if self.counts_new else at + 1 - start
            if count == self.stops and at + 1 < len(lane):
                stopped, end = True, at + 1
                break
        self.stopped_at.append(end)
        cuts: dict[str, list[int]] = {}
        for place in places:
            partition, position = place
            of_part = cuts.setdefault(partition, [])
            if not self._is_aside(place, part) and (not part.tables or table_of(place) in part.tables):
                of_part.append(position)
        for partition, positions in cuts.items():
            if len(positions) > self.most:
                cuts[partition] = [positions[at] for at in np.linspace(0, len(positions) - 1, self.most).astype(int)]
        aside = [place for place in places if self._is_aside(place, part)]
        receipts = (receipt(label, places, aside),) if places else ()
        partitions = tuple({partition for partition, _ in lane[start:end]})
        return places, LaneShare(receipts, partitions, stopped=stopped, cuts=cuts, set_aside="x" if aside else "")

    def _commit(self, label: str) -> Committed | Aborted:
        places, aside = self.labels[label]
        self.open.discard(label)
        bad = self.bad.intersection(places) - aside
        if aside and self.rejects_dead_letters:
            return Aborted(label, RowsRejected("a dead letter is too long", label=label))
        if bad:
            return Aborted(label, self._rejection(label, [place for place in places if place not in aside]))
        self.dead += sorted(aside)
        self.committed += [place for place in places if place not in aside]
        for partition, position in places:
            assert self.known.get(partition, -1) < position
            self.known[partition] = position
        return Committed(label, 1)

    def _rejection(self, label: str, places: Sequence[Place]) -> RowsRejected:
        """What the server says of a label; it has no reason for a table of which no row is good."""
        bad = [place for place in places if place in self.bad]
        if not self.tells:
            return RowsRejected("bad rows", label=label)
        by_table = {
            table: (
                len(rows),
                "" if all(place in self.bad for place in places if table_of(place) == table) else f"{rows}",
            )
            for table in sorted(map(table_of, bad))
            for rows in ([place for place in bad if table_of(place) == table],)
        }
        why = "; ".join(filter(None, (why for _, why in by_table.values())))
        error = RowsRejected(f"bad rows: {why or UNSAID}", label=label, table=", ".join(by_table))
        error.by_table = by_table
        return error

    @property
    def reasons(self) -> dict[Place, str]:
        """Why each source transaction was set aside of which the server alone knew."""
        judged = self.judged | self.late
        return {
            place: letter.reason
            for part in self.runs
            for place, letter in part.set_aside.items()
            if place not in judged
        }


def table_of(place: Place) -> str:
    return f"t{place[1] % 3}"


def receipt(label: str, places: Sequence[Place], aside: Sequence[Place] = ()) -> Receipt:
    """The receipt of a lane that has loaded `places`, those of `aside` as dead letters."""
    spans, regions = spans_of(places)
    dead, dead_regions = spans_of(aside)
    regions = spans_of([place for place in places if place not in aside])[1]
    whole = Receipt(label, 1, "job", 0, regions, spans, 1, 1, 0, recycled=False)
    return replace(whole, dead_lettered=dead_regions, dead_lettered_positions=dead)


def spans_of(places: Sequence[Place]) -> tuple[tuple[PositionSpan, ...], tuple[RegionCount, ...]]:
    positions: dict[str, list[int]] = {}
    for partition, position in places:
        positions.setdefault(partition, []).append(position)
    spans = tuple(PositionSpan(name, at[0], at[-1], len(at)) for name, at in positions.items())
    return spans, tuple(RegionCount(name, "t", len(at), 10 * len(at)) for name, at in positions.items())


def coordinator(most: int = 10**6, *, quarantine: bool = True) -> SharedTransactionCoordinator:
    return SharedTransactionCoordinator(
        (f"L{number}" for number in range(10**6)),
        RoundLimits(240.0, 3),
        Deadline.after(3600.0, ManualClock()),
        random.Random(1),
        fenced=False,
        quarantine=Quarantine(most) if quarantine else None,
    )


def write(server: Server, most: int = 10**6) -> tuple[list[Receipt], SharedTransactionCoordinator]:
    coordinator_ = coordinator(most)
    return orders.perform_all(coordinator_.write(), server.perform), coordinator_


def check(server: Server, receipts: list[Receipt]) -> None:
    """Every good source transaction is committed once and in order, every bad one is a dead letter once."""
    everything = [place for lane in server.lanes for place in lane]
    assert sorted(server.committed) == sorted(set(everything) - server.bad)
    assert sorted(server.dead) == sorted(server.bad)
    for partition in {partition for partition, _ in everything}:
        positions = [position for name, position in server.committed if name == partition]
        assert positions == sorted(positions)
    assert server.open == set()
    assert sum(receipt.source_transactions for receipt in receipts) == len(server.committed)
    assert sum(receipt.dead_lettered_transactions for receipt in receipts) == len(server.dead)
    assert sum(receipt.rows for receipt in receipts) == len(server.committed)
    assert sum(receipt.dead_lettered_rows for receipt in receipts) == len(server.dead)


def most_labels(server: Server) -> int:
    halvings = math.ceil(math.log2(max(2, sum(map(len, server.lanes)))))
    return (len(server.bad) + 1) * (2 * halvings + 4) + len(server.late)  # one more for rows that were sent before


@st.composite
def sources(draw: st.DrawFn) -> tuple[list[list[Place]], set[Place]]:
    """The source transactions of each lane, partition after partition, and the bad ones."""
    lanes: list[list[Place]] = []
    for lane in range(draw(st.integers(1, 3))):
        places: list[Place] = []
        for number in range(draw(st.integers(0, 3))):
            position = draw(st.integers(0, 5))
            for _ in range(draw(st.integers(0, 12))):
                position += draw(st.integers(1, 4))
                places.append((f"p{lane}.{number}", position))
        lanes.append(places)
    everything = [place for lane in lanes for place in lane]
    return lanes, draw(st.sets(st.sampled_from(everything))) if everything else set()


@examples(400)
@given(sources(), st.sampled_from([2, 3, 5, 100]), st.integers(0, 9), st.booleans())
def test_the_bad_ones_are_dead_letters_and_the_good_ones_are_there_once_in_order(
    source: tuple[list[list[Place]], set[Place]], most: int, who: int, tells: bool
) -> None:
    """Some are found by the server alone, some by the lanes, and some of these too late."""
    lanes, bad = source
    judged = {place for place in bad if (place[1] + who) % 4 == 0}
    late = {place for place in bad if (place[1] + who) % 4 == 1}
    server = Server(lanes, bad, most=most, judged=judged, late=late, tells=tells)
    receipts, _ = write(server)
    check(server, receipts)
    assert len(server.labels) <= most_labels(server)
    if tells:
        for place, reason in server.reasons.items():
            assert reason in (f"bad rows: {[place]}", f"bad rows: {UNSAID}")


@examples(400)
@given(sources(), st.sampled_from([2, 3, 100]), st.integers(1, 9), st.booleans())
def test_lanes_that_stop_at_the_end_of_a_round_change_nothing(
    source: tuple[list[list[Place]], set[Place]], most: int, stops: int, counts_new: bool
) -> None:
    """Lanes of sorted rows skip what is known; lanes that read Kafka stop by the time, and the next round goes on."""
    server = Server(*source, most=most, stops=stops, counts_new=counts_new)
    coordinator_, steps = coordinator(), 0
    limit = 10 * (most_labels(server) + sum(map(len, server.lanes)) + 10)

    def perform(order: orders.Order) -> object:
        nonlocal steps
        steps += isinstance(order, orders.RunLanes)
        assert steps <= limit, "the search makes no progress"
        return server.perform(order)

    check(server, orders.perform_all(coordinator_.write(), perform))


@pytest.mark.parametrize("bad", [0, 1, 500, 998, 999])
@pytest.mark.parametrize("most", [100, 10**6])
def test_one_bad_one_in_a_thousand_costs_few_labels(bad: int, most: int) -> None:
    server = Server([[("p", position) for position in range(1000)]], {("p", bad)}, most=most)
    check(server, write(server)[0])
    assert len(server.labels) <= 22


def test_without_a_bad_one_it_is_one_label() -> None:
    server = Server([[("p", 1), ("q", 1)], [("r", 1)]], set())
    assert len(write(server)[0]) == len(server.labels) == 1


def test_a_source_transaction_that_is_alone_becomes_a_dead_letter_with_the_servers_reason() -> None:
    server = Server([[("p", 7)]], {("p", 7)})
    (only,), _ = write(server)
    assert (only.rows, only.dead_lettered_rows) == (0, 1)
    assert server.runs[1].set_aside == {("p", 7): DeadLetter("bad rows", "L0")}


def test_a_reason_that_the_server_has_only_of_a_larger_part_is_kept() -> None:
    """The last suspect is alone in its table's load; before, other rows of the table were good."""
    places = [("p", position) for position in range(30)]
    server = Server([places], {("p", 7), ("p", 22)}, tells=True)
    check(server, write(server)[0])
    assert server.reasons == {place: f"bad rows: {[place]}" for place in server.bad}


def test_a_reason_of_an_earlier_search_is_not_taken() -> None:
    """In a later round a row of the same table is bad, too, but alone in its load from the beginning."""
    server = Server([[("p", 0), ("p", 3), ("p", 6), ("p", 7)]], {("p", 3), ("p", 6)}, stops=2, tells=True)
    check(server, write(server)[0])
    assert server.reasons == {("p", 3): f"bad rows: {[('p', 3)]}", ("p", 6): f"bad rows: {UNSAID}"}


def test_what_the_lanes_find_themselves_costs_no_label() -> None:
    places = [("p", position) for position in range(100)]
    server = Server([places], {("p", 7), ("p", 70)}, judged={("p", 7), ("p", 70)})
    receipts, _ = write(server)
    check(server, receipts)
    assert len(server.labels) == 1


def test_what_they_find_too_late_costs_one_label_for_all() -> None:
    places = [("p", position) for position in range(100)]
    bad = {("p", 7), ("p", 70)}
    server = Server([places], bad, late=bad)
    check(server, write(server)[0])
    assert len(server.labels) == 2


def test_too_many_that_the_lanes_find_end_the_write_with_nothing_visible() -> None:
    places = [("p", position) for position in range(10)]
    for late in (set(), set(places[:3])):
        server = Server([places], set(places[:3]), judged=set(places[:3]) - late, late=late)
        with pytest.raises(RowsRejected, match=r"more source transactions .*max_quarantined \(2\)|max_quarantined"):
            write(server, most=2)
        assert (server.committed, server.dead, server.open) == ([], [], set())


def test_the_tables_that_the_server_names_make_the_search_shorter() -> None:
    places = [("p", position) for position in range(3000)]
    labels = []
    for tells in (False, True):
        server = Server([places], {("p", 2000)}, most=10, tells=tells)
        check(server, write(server)[0])
        labels.append(len(server.labels))
    assert labels[1] < labels[0]


def test_rows_that_are_rejected_in_a_later_round_are_found_there() -> None:
    server = Server([[("p", position) for position in range(8)]], {("p", 6)}, stops=4, counts_new=False)
    receipts, _ = write(server)
    check(server, receipts)
    assert receipts[0].recycled


def test_after_the_most_dead_letters_the_write_ends_with_advice() -> None:
    places = [("p", position) for position in range(8)]
    server = Server([places], {("p", 2), ("p", 4), ("p", 6)})
    with pytest.raises(RowsRejected, match=r"max_quarantined \(2\) is reached"):
        write(server, most=2)
    assert server.dead == [("p", 2), ("p", 4)]
    assert server.committed == [("p", position) for position in (0, 1, 3, 5)]
    assert server.open == set()


def test_exactly_the_most_dead_letters_are_allowed() -> None:
    server = Server([[("p", position) for position in range(8)]], {("p", 2), ("p", 4)})
    receipts, coordinator_ = write(server, most=2)
    check(server, receipts)
    assert coordinator_.quarantine is not None
    assert coordinator_.quarantine.count == 2


def test_dead_letters_that_are_rejected_themselves_end_the_write() -> None:
    server = Server([[("p", 1), ("p", 2)]], {("p", 1)}, rejects_dead_letters=True)
    with pytest.raises(RowsRejected, match="too long"):
        write(server)
    assert (server.dead, server.committed, server.open) == ([], [], set())


def test_rows_without_positions_cannot_be_told_apart() -> None:
    """Their lanes report no cuts."""
    server = Server([[("p", 1), ("p", 2)]], {("p", 1)})

    def perform(order: orders.Order) -> object:
        result = server.perform(order)
        return (
            LanesResult([replace(share, cuts={}) for share in result.shares])
            if isinstance(result, LanesResult)
            else result
        )

    with pytest.raises(RowsRejected, match="bad rows"):
        orders.perform_all(coordinator().write(), perform)
    assert len(server.labels) == 1


def test_without_a_quarantine_rejected_rows_end_the_write() -> None:
    server = Server([[("p", 1), ("p", 2)]], {("p", 1)})
    with pytest.raises(RowsRejected) as failure:
        orders.perform_all(coordinator(quarantine=False).write(), server.perform)
    assert "p 1 to 2" in str(failure.value)  # the server names no place in the source
    assert len(server.labels) == 1


def test_another_error_ends_the_search() -> None:
    server = Server([[("p", position) for position in range(8)]], {("p", 3)})

    def perform(order: orders.Order) -> object:
        if isinstance(order, orders.RunLanes) and len(server.runs) == 2:
            raise StarRocksSinkError("no such table")
        return server.perform(order)

    with pytest.raises(StarRocksSinkError, match="no such table"):
        orders.perform_all(coordinator().write(), perform)
    assert server.open == set()
