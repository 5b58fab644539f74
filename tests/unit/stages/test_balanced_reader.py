"""What the driver's side of the balanced reader plans, over a Kafka that is a few lists of event times."""

from __future__ import annotations

import pickle
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from starrocks_spark_stages.balanced.reader import BalancedKafkaReader
from starrocks_spark_stages.balanced.rules.plan import PartitionEnds
from starrocks_txn_sink.errors import InputError, SourceChanged
from starrocks_txn_sink.sources.kafka.offsets import KafkaPartition, Offsets
from starrocks_txn_sink.sources.kafka.options import BalancedOptions
from tests.support.manual_clock import ManualClock

ALL = ReadAllAvailable()


class Lists:
    """`times` of each place's rows, of which the first `gone` have been dropped by retention."""

    def __init__(self, times: dict[KafkaPartition, list[int]]) -> None:
        self.times = times
        self.gone = dict.fromkeys(times, 0)

    def partitions(self, topics: Iterable[str], pattern: str | None) -> list[KafkaPartition]:
        return sorted(
            place for place in self.times if (re.fullmatch(pattern, place[0]) if pattern else place[0] in set(topics))
        )

    def first_offsets(self, places: Iterable[KafkaPartition]) -> Offsets:
        return {place: self.gone.get(place, 0) for place in places}

    def end_offsets(self, places: Iterable[KafkaPartition]) -> Offsets:
        return {place: len(self.times[place]) for place in places}

    def partition_ends(self, places: Iterable[KafkaPartition]) -> PartitionEnds:
        place_list = list(places)
        return PartitionEnds(
            self.end_offsets(place_list), {place: max(self.times[place], default=None) for place in place_list}
        )

    def oldest_time(self, places: Iterable[KafkaPartition]) -> int | None:
        return min((self.times[place][0] for place in places if self.times[place]), default=None)

    def offsets_from(self, places: Iterable[KafkaPartition], end: Offsets) -> Callable[[int], Offsets]:  # noqa: ARG002
        return lambda time: {place: bisect_left(self.times[place], time) for place in places}


def reader(kafka: Lists, **options: str) -> tuple[BalancedKafkaReader, ManualClock]:
    clock = ManualClock()
    settings = {"kafka.bootstrap.servers": "nowhere:1", "kafka.sasl.password": "secret", **options}
    settings |= {} if "subscribePattern" in options else {"subscribe": "a"}
    return BalancedKafkaReader(BalancedOptions.read(settings), clock, kafka), clock  # type: ignore[arg-type]


def ranges(slices: Iterable[Any]) -> list[dict[KafkaPartition, tuple[int, int]]]:
    return [dict(slice.ranges) for slice in slices]


def test_a_micro_batch_ends_where_all_have_come_to_and_the_next_goes_on_there() -> None:
    kafka = Lists({("a", 0): [10, 20, 30], ("a", 1): [5, 20]})
    driver, _ = reader(kafka)
    start = driver.initialOffset()
    assert start == {"a": {"0": 0, "1": 0}, "@time": -1}
    end = driver.latestOffset(start, ALL)
    assert end == {"a": {"0": 2, "1": 2}, "@time": 20}
    assert ranges(driver.partitions(start, end)) == [{("a", 0): (0, 2), ("a", 1): (0, 2)}]
    assert driver.latestOffset(end, ALL) == end
    kafka.times[("a", 1)].append(30)
    after = driver.latestOffset(end, ALL)
    assert ranges(driver.partitions(end, after)) == [{("a", 0): (2, 3), ("a", 1): (2, 3)}]
    assert driver.partitions(after, after) == []


def test_who_is_silent_is_left_out_after_the_timeout() -> None:
    driver, clock = reader(Lists({("a", 0): [1, 9], ("a", 1): []}), idle_timeout="5")
    start = driver.initialOffset()
    assert driver.latestOffset(start, ALL) == start
    clock.advance(5)
    assert driver.latestOffset(start, ALL)["a"] == {"0": 2, "1": 0}


def test_available_now_reads_what_was_there_and_no_more() -> None:
    kafka = Lists({("a", 0): [1, 2, 9], ("a", 1): [1]})
    driver, _ = reader(kafka)
    start = driver.initialOffset()
    driver.prepareForTriggerAvailableNow()
    kafka.times[("a", 1)] += [3, 50]
    half = driver.latestOffset(start, ReadMaxRows(3))
    assert half["a"] == {"0": 2, "1": 1}
    end = driver.latestOffset(half, ReadMaxRows(3))
    assert end["a"] == {"0": 3, "1": 1}
    assert driver.latestOffset(end, ReadMaxRows(3)) == end


def test_the_first_start_is_at_offsets_that_the_partitions_have() -> None:
    kafka = Lists({("a", 0): [1, 2, 3], ("a", 1): [1, 2]})
    kafka.gone[("a", 0)] = 1
    driver, _ = reader(kafka, startingOffsets='{"a": {"0": -2, "1": 1}}')
    assert driver.initialOffset()["a"] == {"0": 1, "1": 1}
    for wrong, place in (
        ('{"0": 2, "1": 3}', "offset 3 for partition 1 of topic a, which has 0 to 2"),
        ('{"0": 0, "1": -1}', "offset 0 for partition 0 of topic a, which has 1 to 3"),
    ):
        driver, _ = reader(kafka, startingOffsets=f'{{"a": {wrong}}}')
        with pytest.raises(InputError, match=place):
            driver.initialOffset()
    driver, _ = reader(kafka, startingOffsets='{"a": {"0": 0, "1": -1}}', failOnDataLoss="false")
    assert driver.initialOffset()["a"] == {"0": 0, "1": 2}


def test_a_new_partition_is_read_from_its_beginning() -> None:
    kafka = Lists({("a", 0): [1, 2]})
    driver, _ = reader(kafka)
    end = driver.latestOffset(driver.initialOffset(), ALL)
    kafka.times[("a", 1)] = [1, 2]
    kafka.gone[("a", 1)] = 1
    after = driver.latestOffset(end, ALL)
    assert ranges(driver.partitions(end, after)) == [{("a", 1): (1, 2)}]


def test_a_partition_that_appears_empty_is_waited_for_until_it_counts_as_idle() -> None:
    kafka = Lists({("a", 0): [1, 2]})
    driver, clock = reader(kafka, idle_timeout="5")
    end = driver.latestOffset(driver.initialOffset(), ALL)
    kafka.times[("a", 0)] += [3, 4]
    kafka.times[("a", 1)] = []
    assert driver.latestOffset(end, ALL) == end
    clock.advance(4)
    assert driver.latestOffset(end, ALL) == end
    clock.advance(1)
    kafka.times[("a", 0)].append(5)
    after = driver.latestOffset(end, ALL)
    assert (after["a"], after["@time"]) == ({"0": 5, "1": 0}, 5)
    kafka.times[("a", 1)] += [3, 6]  # the first is late, and released at once; the time does not go back
    last = driver.latestOffset(after, ALL)
    assert ranges(driver.partitions(after, last)) == [{("a", 1): (0, 1)}]
    assert last["@time"] >= 5


def test_a_topic_that_appears_is_read_where_the_pattern_matches_and_nowhere_else() -> None:
    for options, topics in (({"subscribePattern": "a.*"}, {"a", "ab"}), ({"subscribe": "a"}, {"a"})):
        kafka = Lists({("a", 0): [1, 2]})
        driver, _ = reader(kafka, **options)
        end = driver.latestOffset(driver.initialOffset(), ALL)
        kafka.times |= {("a", 0): [1, 2, 7], ("ab", 0): [1, 7], ("b", 0): [1, 7]}
        after = driver.latestOffset(end, ALL)
        assert {name for name in after if not name.startswith("@")} == topics
        assert all(after[topic]["0"] == len(kafka.times[(topic, 0)]) for topic in topics)
        again, _ = reader(kafka, **options)  # a restart goes on from the checkpoint
        assert again.latestOffset(after, ALL) == after


@pytest.mark.parametrize("seed", range(30))
def test_partitions_and_topics_that_appear_while_rows_come_lose_none_and_repeat_none(seed: int) -> None:
    random, kafka, now = Random(seed), Lists({("a", 0): []}), 0
    driver, clock = reader(kafka, subscribePattern="a|b", idle_timeout="5")
    at, read, time = driver.initialOffset(), dict[KafkaPartition, int](), -1
    for _ in range(120):
        if random.random() < 0.05:
            kafka.times.setdefault((random.choice("abc"), random.randrange(4)), [])
        for rows in kafka.times.values():
            if random.random() < 0.5:
                now += 1
                rows.append(max([now, *rows[-1:]]))
        clock.advance(random.choice([0, 1, 6]))
        if random.random() < 0.1:
            driver, clock = reader(kafka, subscribePattern="a|b", idle_timeout="5")
        end = driver.latestOffset(at, random.choice([ALL, ReadMaxRows(7)]))
        for piece in ranges(driver.partitions(at, end)) if end != at else []:
            for partition, (low, high) in piece.items():
                assert read.get(partition, 0) == low
                read[partition] = high
        assert end["@time"] >= time
        at, time = end, end["@time"]
    clock.advance(60)
    driver.prepareForTriggerAvailableNow()
    last = driver.latestOffset(at, ALL)
    for piece in ranges(driver.partitions(at, last)) if last != at else []:
        for partition, (low, high) in piece.items():
            assert read.get(partition, 0) == low
            read[partition] = high
    assert read == {place: len(rows) for place, rows in kafka.times.items() if place[0] != "c" and rows}


def test_rows_that_are_gone_stop_the_query_or_are_put_up_with() -> None:
    kafka = Lists({("a", 0): [1, 2, 3, 4]})
    kafka.gone[("a", 0)] = 2
    start = {"a": {"0": 1}, "@time": 1}
    with pytest.raises(SourceChanged, match=r"dropped rows that were not read yet.*first=2.*offset=1.*failOnDataLoss"):
        reader(kafka)[0].latestOffset(start, ALL)
    tolerant, _ = reader(kafka, failOnDataLoss="false")
    end = tolerant.latestOffset(start, ALL)
    assert ranges(tolerant.partitions(start, end)) == [{("a", 0): (2, 4)}]


def test_a_recreated_topic_or_one_that_lost_a_partition_stops_the_query() -> None:
    with pytest.raises(SourceChanged, match=r"ends before the offset already read.*end=1.*offset=50") as failure:
        reader(Lists({("a", 0): [1]}))[0].latestOffset({"a": {"0": 50}, "@time": 1}, ALL)
    assert "failOnDataLoss" not in str(failure.value), "no row was dropped, so the option does not help"
    with pytest.raises(InputError, match="no longer exists"):
        reader(Lists({("a", 0): [1]}))[0].latestOffset({"a": {"0": 0, "1": 0}, "@time": 1}, ALL)


def test_latest_begins_at_the_end() -> None:
    driver, _ = reader(Lists({("a", 0): [1, 2]}), startingOffsets="latest")
    assert driver.initialOffset()["a"] == {"0": 2}


def test_tasks_get_slices_of_time_over_all_partitions() -> None:
    kafka = Lists({("a", 0): list(range(60_000)), ("a", 1): list(range(0, 60_000, 2))})
    driver, _ = reader(kafka, tasks="3")
    start = driver.initialOffset()
    driver.prepareForTriggerAvailableNow()
    cuts = ranges(driver.partitions(start, driver.latestOffset(start, ALL)))
    assert len(cuts) == 3
    assert all(len(cut) == 2 for cut in cuts)
    assert [cut[("a", 0)][0] for cut in cuts[1:]] == [cut[("a", 0)][1] for cut in cuts[:-1]]
    assert cuts[-1][("a", 0)][1] == 60_000


def test_what_travels_to_the_tasks_has_no_client_and_shows_no_password() -> None:
    driver, _ = reader(Lists({("a", 0): [1]}))
    start = driver.initialOffset()
    (piece,) = driver.partitions(start, driver.latestOffset(start, ALL))
    assert "secret" not in repr(piece)
    assert pickle.loads(pickle.dumps(piece)).config["sasl.password"] == "secret"
    assert pickle.loads(pickle.dumps(driver))._kafka_admin is None
