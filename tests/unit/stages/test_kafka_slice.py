"""What a task takes from its consumer: rows up to the ends, nothing else, and never too few."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError

from starrocks_spark_stages.balanced.reader import Slice, collect
from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.errors import DeadlineExceeded, SourceChanged, SourceDamaged
from starrocks_txn_sink.sources.kafka import ranges
from starrocks_txn_sink.sources.kafka.consumer import ObjectConsumer
from starrocks_txn_sink.sources.kafka.offsets import KafkaPartition
from starrocks_txn_sink.sources.kafka.ranges import UnfinishedPartitions, polls, read_ranges
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
    unassigned: list[KafkaPartition] = field(default_factory=list)

    def consume(self, _: int, timeout: float) -> list[Said]:
        messages = next(self.polls, [])
        if all(message.error() for message in messages):
            self.clock.advance(timeout)
        return messages

    def assign(self, places: list[Any]) -> None:
        """Its messages are given."""

    def incremental_unassign(self, places: list[Any]) -> None:
        self.unassigned += [(place.topic, place.partition) for place in places]

    def close(self) -> None:
        """It is used no more."""


def read(
    ranges: dict[KafkaPartition, tuple[int, int]], *scripts: list[Said]
) -> tuple[list[tuple[int, int]], list[KafkaPartition]]:
    clock = ManualClock()
    client, part = Scripted(iter(scripts), clock), Slice(ranges, 5.0, {})
    rows = collect(part, polls(consumer_of(client, part), UnfinishedPartitions(part), clock))
    return places(rows), client.unassigned


def places(rows: pa.Table) -> list[tuple[int, int]]:
    return [(row_read["partition"], row_read["offset"]) for row_read in rows.to_pylist()]


def consumer_of(client: Scripted, part: Slice) -> ObjectConsumer:
    consumer = ObjectConsumer(cast(Any, client))
    consumer.assign({partition: start for partition, (start, _) in part.ranges.items()})
    return consumer


def test_rows_beyond_an_end_are_left_and_the_partition_is_read_no_more() -> None:
    rows_read, partitions_left = read({A: (0, 2), B: (3, 4)}, [row(A, 0), row(A, 1), row(A, 2)], [row(B, 3), row(A, 3)])
    assert rows_read == [(0, 0), (0, 1), (1, 3)]
    assert partitions_left == [A, B]


def test_an_end_of_markers_is_reached_by_the_row_behind_it_or_by_the_end_of_the_log() -> None:
    assert read({A: (0, 3)}, [row(A, 0), row(A, 4)])[0] == [(0, 0)]
    assert read({A: (0, 3)}, [row(A, 0)], [eof(A, 3)])[0] == [(0, 0)]


def test_a_log_that_seems_to_end_too_early_is_waited_for() -> None:
    assert read({A: (0, 3)}, [row(A, 0), eof(A, 1)], [], [row(A, 1), row(A, 2)])[0] == [(0, 0), (0, 1), (0, 2)]
    assert read({A: (0, 3)}, [row(A, 0), row(A, 1), eof(A, 2)], [], [row(A, 2)])[0] == [(0, 0), (0, 1), (0, 2)]
    with pytest.raises(DeadlineExceeded, match=r"no rows for 5 s.*first=\('a', 0\)"):
        read({A: (0, 3), B: (0, 1)}, [row(A, 0), eof(A, 1), row(B, 0)])


def test_rows_of_several_topics_keep_their_places() -> None:
    clock, third = ManualClock(), ("b", 7)
    ranges = Slice({A: (0, 1), third: (5, 6), B: (2, 3)}, 5.0, {})
    client = Scripted(iter([[row(third, 5), row(B, 2), row(A, 0), row(third, 6)]]), clock)
    rows = collect(ranges, polls(consumer_of(client, ranges), UnfinishedPartitions(ranges), clock))
    assert [tuple(row_read[name] for name in ("topic", "partition", "offset")) for row_read in rows.to_pylist()] == [
        ("b", 7, 5), ("a", 1, 2), ("a", 0, 0)
    ]  # fmt: skip
    assert rows["timestamp"].cast("int64").to_pylist() == [1_005_000, 1_002_000, 1_000_000]


@pytest.mark.parametrize(
    ("code", "message"),
    [(KafkaError._AUTO_OFFSET_RESET, "no longer has the first offsets"), (KafkaError.UNKNOWN_TOPIC_OR_PART, "refused")],
)
def test_what_waiting_does_not_heal_stops_at_once(code: int, message: str) -> None:
    with pytest.raises(SourceChanged, match=message):
        read({A: (0, 3)}, [Said(A, 0, KafkaError(code))])


AWAY = Said(A, 0, KafkaError(KafkaError._ALL_BROKERS_DOWN))


def test_a_broker_that_is_away_is_waited_for() -> None:
    assert read({A: (0, 1)}, [AWAY], [], [row(A, 0)])[0] == [(0, 0)]


@pytest.mark.parametrize(("problem", "reason"), [(AWAY, "reason=.*brokers? .*down"), (eof(A, 0), "no rows")])
def test_a_problem_at_each_poll_does_not_renew_the_patience(problem: Said, reason: str) -> None:
    clock = ManualClock()
    part = Slice({A: (0, 2)}, 5.0, {})
    client = Scripted(iter([[problem]] * 500), clock)
    with pytest.raises(DeadlineExceeded, match=reason):
        collect(part, polls(consumer_of(client, part), UnfinishedPartitions(part), clock))
    assert clock.monotonic() == pytest.approx(5.0, abs=0.2)


def test_partitions_that_end_one_by_one_without_rows_renew_the_patience() -> None:
    numbers = [("a", number) for number in range(3)]
    waits = [[eof(place, 2)] if turn == 39 else [] for place in numbers for turn in range(40)]  # 4 s each
    assert read(dict.fromkeys(numbers, (0, 2)), *waits) == ([], numbers)


def test_rows_that_trickle_are_read_until_the_deadline_only() -> None:
    clock = ManualClock()
    part = Slice({A: (0, 100)}, 5.0, {})
    waits: list[list[Said]] = [[], [], []]
    client = Scripted(iter(message for offset in range(100) for message in (*waits, [row(A, offset)])), clock)
    deadline = Deadline.after(8.0, clock)
    with pytest.raises(DeadlineExceeded, match=r"deadline passed while the lane read Kafka.*offset=2\d"):
        collect(part, polls(consumer_of(client, part), UnfinishedPartitions(part), clock, deadline))
    assert clock.monotonic() == pytest.approx(8.0, abs=0.2)


# --- damaged record batches ---

DAMAGES = (
    *(KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION, KafkaError._NOT_IMPLEMENTED, KafkaError._UNDERFLOW),
    *(KafkaError.INVALID_MSG, KafkaError.INVALID_MSG_SIZE, KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD),
    *(KafkaError.UNSUPPORTED_COMPRESSION_TYPE, KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT),
)


def damage(place: KafkaPartition, offset: int, code: int = KafkaError._BAD_MSG) -> Said:
    return Said(place, offset, KafkaError(code))


@dataclass
class Reading:
    """`read_ranges` with one scripted client after the other.

    `starts` has where each of them began, `topics` the topic of each row.
    """

    monkeypatch: pytest.MonkeyPatch
    starts: list[dict[KafkaPartition, int]] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)

    def read(
        self, wanted_ranges: dict[KafkaPartition, tuple[int, int]], *clients: list[list[Said]]
    ) -> list[tuple[int, int]]:
        clock, scripts = ManualClock(), iter(clients)

        def opened(_: object) -> ObjectConsumer:
            return Watched(cast(Any, Scripted(iter(next(scripts)), clock)), self.starts)

        self.monkeypatch.setattr(ranges, "open_consumer", opened)
        ranges.close_consumers()
        part = Slice(wanted_ranges, 5.0, {})
        try:
            rows = collect(part, read_ranges(part, clock=clock))
            self.topics = rows["topic"].to_pylist()
            return places(rows)
        finally:
            ranges.close_consumers()


class Watched(ObjectConsumer):
    def __init__(self, client: Any, starts: list[dict[KafkaPartition, int]]) -> None:
        super().__init__(client)
        self._starts = starts

    def assign(self, starts: Mapping[KafkaPartition, int]) -> None:
        if starts:
            self._starts.append(dict(starts))
        super().assign(starts)


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Reading:
    return Reading(monkeypatch)


@pytest.mark.parametrize("code", DAMAGES)
def test_a_batch_that_was_damaged_on_the_way_is_read_once_more_from_its_place(reading: Reading, code: int) -> None:
    """Of a poll with a damage only the rows before it are taken: later ones may be rows from behind the damage."""
    first = [[row(A, 0)], [row(A, 1), eof(B, 1), row(B, 0), damage(A, 2, code), row(A, 4), row(B, 1)]]
    again = [[row(A, 2), row(A, 3), row(B, 1)], [row(A, 4)]]
    rows_read = reading.read({A: (0, 5), B: (0, 2)}, first, again)
    assert sorted(rows_read) == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 0), (1, 1)]
    assert reading.starts == [{A: 0, B: 0}, {A: 2, B: 1}]


@pytest.mark.parametrize("code", DAMAGES)
def test_a_damaged_batch_is_an_error_with_its_place(reading: Reading, code: int) -> None:
    damaged = [[damage(A, 1, code)]]
    with pytest.raises(SourceDamaged, match=r"damaged.*\[offset=1, partition=0, topic=a\]"):
        reading.read({A: (0, 5)}, [[row(A, 0)], *damaged], damaged)
    assert reading.starts == [{A: 0}, {A: 1}]


def test_what_librdkafka_reports_behind_a_damage_does_not_count(reading: Reading) -> None:
    """It may look for the next batch in the middle of the damaged one, and then jump to any offset."""
    messages = [
        [damage(A, 1), damage(A, 77), eof(A, 10**15), Said(A, 10**15, KafkaError(KafkaError._AUTO_OFFSET_RESET))]
    ]
    with pytest.raises(SourceDamaged, match="offset=1,"):
        reading.read({A: (0, 5)}, [[row(A, 0)], *messages], messages)


def test_a_client_that_asks_for_an_offset_of_another_range_is_replaced(reading: Reading) -> None:
    """After a damaged batch librdkafka may report a jump of the last micro-batch in the next one."""
    reset = Said(A, 10**15, KafkaError(KafkaError._AUTO_OFFSET_RESET))
    assert reading.read({A: (20, 22)}, [[row(A, 20), reset]], [[row(A, 21)]]) == [(0, 20), (0, 21)]
    with pytest.raises(SourceDamaged, match=r"lost its place.*\[offset=20, partition=0, topic=a\]"):
        reading.read({A: (20, 22)}, [[reset]], [[reset]])
    assert read({A: (20, 21), B: (0, 1)}, [row(A, 20), reset], [row(B, 0)])[0] == [(0, 20), (1, 0)]


def test_a_client_that_reports_damage_at_ever_other_places_is_given_up(reading: Reading) -> None:
    clients = ([[damage(A, number)]] for number in range(1, 50))
    with pytest.raises(SourceDamaged):
        reading.read({A: (0, 50)}, *clients)
    assert len(reading.starts) == 2


def test_two_damages_with_rows_between_them_are_each_read_again(reading: Reading) -> None:
    clients = [[[damage(A, 0)]], [[row(A, 0), row(A, 1)], [damage(A, 2)]], [[row(A, 2)]]]
    assert reading.read({A: (0, 3)}, *clients) == [(0, 0), (0, 1), (0, 2)]


def test_rows_keep_their_topics_when_another_topic_is_done_before_a_second_try(reading: Reading) -> None:
    """A consumer numbers the topics that it reads."""
    second = ("b", 0)
    reading.read({A: (0, 1), second: (0, 2)}, [[row(A, 0), row(second, 0), damage(second, 1)]], [[row(second, 1)]])
    assert reading.starts == [{A: 0, second: 0}, {second: 1}]
    assert reading.topics == ["a", "b", "b"]


def test_a_damage_behind_the_end_does_not_matter_yet(reading: Reading) -> None:
    polls = [row(A, 0), row(A, 1), damage(A, 2), row(B, 0), damage(A, 0)], [row(B, 1)]
    assert reading.read({A: (0, 2), B: (0, 2)}, [*polls]) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    with pytest.raises(SourceDamaged, match=r"\[offset=1, "):  # the end is not reached: rows may be behind the damage
        reading.read({A: (0, 2)}, [[row(A, 0), damage(A, 2)]], [[damage(A, 2)]])
