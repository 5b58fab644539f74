"""What a task takes from its consumer: rows up to the ends, nothing else, and never too few."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError

from starrocks_txn_sink.errors import DeadlineExceeded, SourceChanged
from starrocks_txn_sink.sources.balanced.plan import KafkaPartition
from starrocks_txn_sink.sources.kafka.consumer import ObjectConsumer
from starrocks_txn_sink.sources.kafka.ranges import polls
from starrocks_txn_sink.sources.kafka.reader import Slice, collect
from tests.support.manual_clock import ManualClock

A, B = ("a", 0), ("a", 1)


@dataclass(frozen=True)
class Said:
    """A message of the client: a row, or an error about a place."""

    place: KafkaPartition
    at: int
    problem: KafkaError | None = None

    def topic(self) -> str:
        return self.place[0]

    def partition(self) -> int:
        return self.place[1]

    def offset(self) -> int:
        return self.at

    def error(self) -> KafkaError | None:
        return self.problem

    def timestamp(self) -> tuple[int, int]:
        return 1, 1000 + self.at

    def key(self) -> bytes | None:
        return None

    def value(self) -> bytes:
        return b"v"


def row(place: KafkaPartition, offset: int) -> Said:
    return Said(place, offset)


def eof(place: KafkaPartition, offset: int) -> Said:
    return Said(place, offset, KafkaError(KafkaError._PARTITION_EOF))


@dataclass
class Scripted:
    """A client that gives `polls` one after the other, then nothing while time passes."""

    polls: Iterator[list[Said]]
    clock: ManualClock
    left: list[KafkaPartition] = field(default_factory=list)

    def consume(self, _: int, timeout: float) -> list[Said]:
        given = next(self.polls, [])
        if not given:
            self.clock.advance(timeout)
        return given

    def assign(self, places: list[Any]) -> None:
        """Its messages are given."""

    def incremental_unassign(self, places: list[Any]) -> None:
        self.left += [(each.topic, each.partition) for each in places]


def read(
    wanted: dict[KafkaPartition, tuple[int, int]], *given: list[Said]
) -> tuple[list[tuple[int, int]], list[KafkaPartition]]:
    clock = ManualClock()
    client, part = Scripted(iter(given), clock), Slice(wanted, 5.0, {})
    rows = collect(part, polls(consumer_of(client, part), part, clock))
    return [(each["partition"], each["offset"]) for each in rows.to_pylist()], client.left


def consumer_of(client: Scripted, part: Slice) -> ObjectConsumer:
    consumer = ObjectConsumer(cast(Any, client))
    consumer.assign({partition: start for partition, (start, _) in part.ranges.items()})
    return consumer


def test_rows_beyond_an_end_are_left_and_the_partition_is_read_no_more() -> None:
    found, left = read({A: (0, 2), B: (3, 4)}, [row(A, 0), row(A, 1), row(A, 2)], [row(B, 3), row(A, 3)])
    assert found == [(0, 0), (0, 1), (1, 3)]
    assert left == [A, B]


def test_an_end_of_markers_is_reached_by_the_row_behind_it_or_by_the_end_of_the_log() -> None:
    assert read({A: (0, 3)}, [row(A, 0), row(A, 4)])[0] == [(0, 0)]
    assert read({A: (0, 3)}, [row(A, 0)], [eof(A, 3)])[0] == [(0, 0)]


def test_a_log_that_seems_to_end_too_early_is_waited_for() -> None:
    assert read({A: (0, 3)}, [row(A, 0), eof(A, 1)], [], [row(A, 1), row(A, 2)])[0] == [(0, 0), (0, 1), (0, 2)]
    with pytest.raises(DeadlineExceeded, match=r"no rows for 5 s.*first=\('a', 0\)"):
        read({A: (0, 3), B: (0, 1)}, [row(A, 0), eof(A, 1), row(B, 0)])


def test_rows_of_several_topics_keep_their_places() -> None:
    clock, other = ManualClock(), ("b", 7)
    wanted = Slice({A: (0, 1), other: (5, 6), B: (2, 3)}, 5.0, {})
    client = Scripted(iter([[row(other, 5), row(B, 2), row(A, 0), row(other, 6)]]), clock)
    rows = collect(wanted, polls(consumer_of(client, wanted), wanted, clock))
    assert [tuple(each[name] for name in ("topic", "partition", "offset")) for each in rows.to_pylist()] == [
        ("b", 7, 5), ("a", 1, 2), ("a", 0, 0)
    ]  # fmt: skip
    assert rows["timestamp"].cast("int64").to_pylist() == [1_005_000, 1_002_000, 1_000_000]


@pytest.mark.parametrize(
    ("code", "said"),
    [(KafkaError._AUTO_OFFSET_RESET, "no longer has the first offsets"), (KafkaError.UNKNOWN_TOPIC_OR_PART, "refused")],
)
def test_what_waiting_does_not_heal_stops_at_once(code: int, said: str) -> None:
    with pytest.raises(SourceChanged, match=said):
        read({A: (0, 3)}, [Said(A, 0, KafkaError(code))])


def test_a_broker_that_is_away_is_waited_for() -> None:
    away = Said(A, 0, KafkaError(KafkaError._ALL_BROKERS_DOWN))
    assert read({A: (0, 1)}, [away], [], [row(A, 0)])[0] == [(0, 0)]
