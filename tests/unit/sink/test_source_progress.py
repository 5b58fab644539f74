"""What the driver commits of its knowledge of the source: never the marks of rows that are not committed."""

from __future__ import annotations

import orjson
import pytest

from starrocks_txn_sink.assembler.rules.spill import CarriedState
from starrocks_txn_sink.assembler.verified.gtids import SeenGtids
from starrocks_txn_sink.assembler.verified.intake import VerifiedState
from starrocks_txn_sink.assembler.verified.repeats import Past, Settled
from starrocks_txn_sink.coordinator.model import LaneShare
from starrocks_txn_sink.protocol.snapshots import MORE, ONE, OVER, READING, SPREAD, whole
from starrocks_txn_sink.protocol.source_places import BINLOG, GIVEN_UP, LSN
from starrocks_txn_sink.sink.source_progress import SnapshotProgress, SourcePlaces, SourceProgress
from starrocks_txn_sink.telemetry import Event
from starrocks_txn_sink.writer.messages import CarryOver

TABLE = "shop:public.items"


def committed(progress: SourceProgress) -> dict[str, str]:
    rows = [orjson.loads(bytes(row)[1:]) for row in progress.rows(lambda: "now")]
    progress.commit()
    return {row["name"]: row["token"] for row in rows if row["kind"] == "snapshot"}


def test_a_part_of_a_micro_batch_says_nothing_of_the_snapshot() -> None:
    """In a quarantine the lanes read all rows, and a label has some of them."""
    names: list[str] = []
    progress = SourceProgress(SnapshotProgress("job", listener=lambda event: names.append(event.name)))
    messages = [CarryOver(marks={TABLE: OVER})]
    for _ in range(2):
        progress.take(messages, whole=False)
        assert committed(progress) == {}
    assert names == []
    progress.take(messages)
    progress.keep()  # nothing was left to load
    progress.take([CarryOver(marks={"shop:public.other": READING})])
    assert committed(progress) == {TABLE: OVER, "shop:public.other": READING}
    assert names == ["snapshot.progressed"]


def test_marks_that_wait_outlive_a_quarantine() -> None:
    progress = SourceProgress(SnapshotProgress("job"))
    progress.take([CarryOver(marks={TABLE: READING})])
    progress.keep()
    progress.take([CarryOver(marks={TABLE: OVER})], whole=False)
    assert committed(progress) == {TABLE: READING}
    progress.take([CarryOver(marks={TABLE: OVER})])
    assert committed(progress) == {TABLE: OVER}


def test_a_second_first_snapshot_is_told() -> None:
    """Once; rows of an incremental one have no mark of the whole."""
    told: list[Event] = []
    progress = SourceProgress(SnapshotProgress("job", listener=told.append))
    progress.take([CarryOver(marks={TABLE: OVER, whole("shop"): OVER})])
    committed(progress)
    progress.take([CarryOver(marks={TABLE: MORE})])
    committed(progress)
    assert [event.name for event in told] == ["snapshot.progressed", "snapshot.ended"]
    told.clear()
    progress.take([CarryOver(marks={TABLE: READING, whole("shop"): READING, whole("other"): READING})])
    committed(progress)
    assert (told[0].name, told[0].fields["source"]) == ("snapshot.repeated", "shop")
    assert "starrocks-txn-sink resync" in told[0].fields["advice"]
    assert "snapshot.repeated" not in [event.name for event in told[1:]]


@pytest.mark.parametrize(
    ("topics", "mark"),
    [
        ({"shop.public.items": 1, "shop.public.orders": 3}, OVER),
        ({"shop.public.items": 2, "shop.public.orders": 1}, SPREAD),
        ({"items": 1, "orders": 3, "shop.transaction": 1}, SPREAD),  # a rule has renamed the topics
        ({"items": 1, "orders": 1}, OVER),
        ({}, OVER),  # the query is hidden
    ],
)
def test_the_last_row_ends_a_table_where_its_topic_has_no_other_partition(topics: dict[str, int], mark: str) -> None:
    """The other partitions may lag so far that none of their rows has come yet."""
    progress = SourceProgress(SnapshotProgress("job"))

    def partitions() -> list[tuple[str, int]]:
        return [(name, number) for name in topics for number in range(topics[name])]

    progress.take([CarryOver(marks={TABLE: OVER, whole("shop"): OVER})], partitions)
    assert committed(progress) == {TABLE: mark, whole("shop"): OVER}
    progress.take([CarryOver(marks={TABLE: READING})], partitions)
    assert committed(progress) == {TABLE: READING}
    progress.take([CarryOver(marks={TABLE: ONE})], partitions)
    assert committed(progress) == {TABLE: ONE if mark == OVER else mark}


# --- places in the source's own log ---

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def state(newest: str, position: int | None, *quarantined: str, **gtids: tuple[tuple[int, int], ...]) -> VerifiedState:
    settled, past = Settled((newest,), bytes(4)), Past(gtids=SeenGtids(gtids))
    return VerifiedState(position, settled=settled, past=past, quarantined=quarantined)


@pytest.mark.parametrize(
    ("after", "numbers"),
    [
        (VerifiedState(), {}),
        (VerifiedState(snapshots=3), {}),
        (state("571", 900), {LSN: 900}),
        (state("571", None), {}),  # a transaction without rows
        (state("file=binlog.000003,pos=154", 900), {BINLOG: 900}),
        (state("0-1-9", 900, **{"0-1": ((1, 3), (5, 9)), "0-2": ((4, 4),)}), {"0-1": 9, "0-2": 4}),
        (state("file=binlog.000003,pos=154", 900, **{UUID: ((1, 9),)}), {UUID: 9}),
        (state("another", 900), {}),
        (state("571", 900, "569", "570"), {LSN: 900, GIVEN_UP: 2}),
    ],
)
def test_the_state_of_an_assembler_says_how_far_its_source_is(after: VerifiedState, numbers: dict[str, int]) -> None:
    assert after.places() == numbers


def carried(number: int, *, reached: bool = False) -> CarryOver:
    of_source = {"shop": CarriedState(state(f"0-1-{number}", 5, **{"0-1": ((1, number),)}))}
    return CarryOver(of_source, reached={} if reached else None)


def written(progress: SourceProgress, *, commit: bool = True) -> dict[str, int]:
    rows = [orjson.loads(bytes(row)[1:]) for row in progress.rows(lambda: "now")]
    if commit:
        progress.commit()
    return {row["name"]: row["position"] for row in rows if row["kind"] == "place"}


def test_a_place_is_written_when_it_is_new() -> None:
    progress = SourceProgress(places=SourcePlaces("job"))
    progress.take([carried(7)])
    assert written(progress, commit=False) == {"shop 0-1": 7}
    assert written(progress) == {"shop 0-1": 7}  # the label before was rolled back
    progress.take([carried(7)])
    assert written(progress) == {}
    progress.take([carried(8)])
    assert written(progress) == {"shop 0-1": 8}


def test_a_label_without_all_rows_writes_no_place_of_a_label_before() -> None:
    """Its lanes have read all of them: what they hand on is ahead of what is visible."""
    progress, stopped = SourceProgress(places=SourcePlaces("job")), LaneShare(stopped=True)
    progress.take([carried(7)])
    progress.take([carried(9)], whole=False)
    assert written(progress) == {}
    progress.take([carried(9)])
    progress.take([stopped, carried(9)])  # reads everything again under the next label
    assert written(progress) == {}
    progress.take([stopped, carried(9, reached=True)])  # goes on from where it has stopped
    assert written(progress) == {"shop 0-1": 9}


def test_places_of_a_label_without_rows_come_with_the_next_commit() -> None:
    progress = SourceProgress(places=SourcePlaces("job"))
    progress.take([carried(7)])
    progress.keep()
    progress.take([carried(9)], whole=False)
    assert written(progress) == {"shop 0-1": 7}
    progress.keep()
    progress.take([carried(9)])
    assert written(progress) == {"shop 0-1": 9}
