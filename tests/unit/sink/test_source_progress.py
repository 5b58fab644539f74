"""What the driver commits of its knowledge of the source: never the marks of rows that are not committed."""

from __future__ import annotations

import orjson
import pytest

from starrocks_txn_sink.protocol.snapshots import MORE, ONE, OVER, READING, SPREAD, whole
from starrocks_txn_sink.sink.source_progress import SnapshotProgress, SourceProgress
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
    assert (told[0].name, told[0].fields) == ("snapshot.repeated", {"job": "job", "source": "shop"})
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
