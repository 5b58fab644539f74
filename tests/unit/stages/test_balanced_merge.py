"""The k-way merge of balanced reading: the document's situations one by one, then properties of all polls."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from starrocks_spark_stages.balanced.rules.merge import BalancedMerge, Emission, Poll
from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.sources import balanced_merge


def events(text: str) -> list[tuple[str, int, int]]:
    """`a1 a3 b2`: partition and event time; the offset counts within the partition of this poll."""
    offsets: dict[str, int] = {}
    events_read = []
    for word in text.split():
        offsets[word[0]] = offsets.get(word[0], -1) + 1
        events_read.append((word[0], int(word[1:]), offsets[word[0]]))
    return events_read


def merged(*polls: str | tuple[str, str], partitions: str = "ab") -> list[tuple[str, Any]]:
    """Emissions as (events, watermark); a poll is its events, or they and the idle partitions."""
    pairs = [(poll, "") if isinstance(poll, str) else poll for poll in polls]
    emissions = balanced_merge([Poll(events(text), set(idle)) for text, idle in pairs], partitions)
    return [(" ".join(f"{e[0]}{e[1]}" for e in emission.events), emission.watermark) for emission in emissions]


def test_one_poll_that_reads_all_partitions_is_handed_on_up_to_the_common_time() -> None:
    assert merged("a1 a3 a5 b2 b4") == [("a1 b2 a3 b4", 4)]


def test_keeping_up_partitions_progress_together() -> None:
    """The document's first scenario: every poll reads everything there is."""
    assert merged("a1 b1", "a2 b2", "a3 b3") == [("a1 b1", 1), ("a2 b2", 2), ("a3 b3", 3)]


def test_catching_up_nothing_is_handed_on_before_every_partition_was_read() -> None:
    """The document's second scenario: polls end before all partitions were read."""
    assert merged("a1 a2 a9", "b1 b3", "c2 c5", partitions="abc") == [
        ("", None),
        ("", None),
        ("a1 b1 a2 c2 b3", 3),
    ]


def test_a_fast_first_partition_does_not_carry_the_time_ahead_of_the_second() -> None:
    """Example 1 of the document: times of the first partition went out before older ones of the second."""
    emissions = merged("a10 a20", "b1 b2", "a30 a40", "b3 b25")
    assert [emission[0] for emission in emissions] == ["", "b1 b2", "", "b3 a10 a20 b25"]
    assert [emission[1] for emission in emissions] == [None, 2, None, 25]


def test_time_progresses_in_every_cycle_although_one_partition_runs_ahead() -> None:
    """Examples 2 and 3 of the document: first steady, then stuck; balanced it stays steady."""
    emissions = merged("a1 b5", "a2 b9", "a3 b14", "a4 b20")
    assert [emission[1] for emission in emissions] == [1, 2, 3, 4]
    assert [emission[0] for emission in emissions] == ["a1", "a2", "a3", "a4"]


def test_each_cycle_is_gated_again() -> None:
    assert merged("a1 b1", "a5", "b4") == [("a1 b1", 1), ("", None), ("b4", 4)]


def test_an_idle_partition_is_left_out() -> None:
    assert merged("a1 a2", ("a3", "b")) == [("", None), ("a1 a2 a3", 3)]


def test_a_partition_that_falls_silent_frees_what_was_waiting_for_it() -> None:
    assert merged("a1 a7 b2", ("", "b"), ("a8", "b"))[1:] == [("", None), ("a7 a8", 8)]


def test_a_cycle_that_waited_only_for_the_idle_partition_ends_with_it() -> None:
    assert merged("a7 a8", ("", "b")) == [("", None), ("a7 a8", 8)]


def test_when_all_are_idle_everything_is_handed_on() -> None:
    assert merged("a1 a9 b2", ("", "ab"), ("", "ab")) == [("a1 b2", 2), ("a9", 9), ("", 9)]


def test_before_anything_was_read_idleness_says_nothing() -> None:
    assert merged(("", "ab")) == [("", None)]


def test_late_rows_of_a_partition_that_returns_go_out_at_once_and_time_stays() -> None:
    merge = BalancedMerge("ab")
    assert merge.take(Poll(events("a5"), {"b"})).watermark == 5
    late = merge.take(Poll(events("b2 b3 b5 b6")))
    assert ([e[1] for e in late.events], late.watermark, merge.late) == ([2, 3], None, 2)
    after = merge.take(Poll(events("a7")))
    assert ([e[:2] for e in after.events], after.watermark) == ([("b", 5), ("b", 6)], 6)
    assert (merge.watermark, merge.late) == (6, 2)


def test_the_watermark_stands_until_the_returned_partition_has_caught_up() -> None:
    assert merged(("a5", "b"), "a6 b1", "a7 b9") == [("a5", 5), ("b1", 5), ("a6 a7", 7)]


def test_equal_times_go_by_partition_and_offset() -> None:
    emissions = balanced_merge([([("b", 1, 8), ("a", 1, 11), ("a", 1, 9), ("b", 1, 7)], ())])
    assert emissions == [Emission([("a", 1, 9), ("a", 1, 11), ("b", 1, 7), ("b", 1, 8)], 1)]


def test_what_else_an_event_carries_travels_along_and_is_never_compared() -> None:
    first, second = ("a", 1, 0, {"x": 1}), ("a", 1, 0, {"x": 2})
    assert balanced_merge([([first, second], ())])[0].events == [first, second]


def test_the_partitions_are_those_that_the_polls_name() -> None:
    assert balanced_merge([([("a", 1, 0)], ()), ([], {"b"})])[0].watermark is None


def test_events_that_contradict_their_partitions_idleness_win() -> None:
    assert merged(("a3 b1", "b")) == [("b1", 1)]


@pytest.mark.parametrize("bad", [("a", None, 0), ("a", 1, None), ("z", 1, 0)])
def test_an_event_without_a_place_is_refused(bad: tuple[Any, ...]) -> None:
    with pytest.raises(InputError, match="no event time, no offset, or a partition"):
        balanced_merge([([bad], ())], ["a"])


PARTITIONS = ["a", "b", "c", "d"]


@st.composite
def histories(draw: st.DrawFn, disorder: int = 0) -> list[Poll]:
    """Polls of four partitions; event times ascend within a partition, but for up to `disorder` units."""
    time = dict.fromkeys(PARTITIONS, 0)
    offset = dict.fromkeys(PARTITIONS, 0)
    polls = []
    for _ in range(draw(st.integers(1, 12))):
        events = []
        for name in draw(st.lists(st.sampled_from(PARTITIONS), unique=True)):
            for _ in range(draw(st.integers(1, 4))):
                time[name] += draw(st.integers(0, 5))
                events.append((name, time[name] - draw(st.integers(0, disorder)), offset[name]))
                offset[name] += 1
        polls.append(Poll(events, draw(st.frozensets(st.sampled_from(PARTITIONS)))))
    return polls


ALL_IDLE = Poll((), frozenset(PARTITIONS))


@given(histories(disorder=3))
def test_nothing_is_lost_or_doubled(polls: list[Poll]) -> None:
    emissions = balanced_merge([*polls, ALL_IDLE], PARTITIONS)
    assert len(emissions) == len(polls) + 1
    assert sorted(e for emission in emissions for e in emission.events) == sorted(
        e for poll in polls for e in poll.events
    )


@given(histories(disorder=3))
def test_emissions_are_sorted_and_the_watermark_never_goes_back(polls: list[Poll]) -> None:
    merge, last = BalancedMerge(PARTITIONS), None
    for poll in polls:
        before = merge.watermark
        emission = merge.take(poll)
        assert emission.events == sorted(emission.events, key=lambda e: (e[1], e[0], e[2]))
        if emission.watermark is None:
            assert all(before is not None and e[1] < before for e in emission.events)
            continue
        assert last is None or last <= emission.watermark
        assert all(e[1] <= emission.watermark for e in emission.events)
        last = emission.watermark


@given(histories())
def test_without_idleness_all_emissions_together_are_in_order_and_nothing_is_late(polls: list[Poll]) -> None:
    merge = BalancedMerge(PARTITIONS)
    times = [e[1] for poll in polls for e in merge.take(Poll(poll.events)).events]
    assert (times, merge.late) == (sorted(times), 0)


@given(histories())
def test_the_watermark_is_what_every_awake_partition_has_reached(polls: list[Poll]) -> None:
    """The rule once more, in the plainest words, over the whole history."""
    read: set[str] = set()
    highest: dict[str, int] = {}
    stands: int | None = None
    for poll, emission in zip(polls, balanced_merge(polls, PARTITIONS), strict=True):
        for name, time, _ in poll.events:
            read.add(name)
            highest[name] = max(time, highest.get(name, 0))
        awake = {name for name in PARTITIONS if name not in poll.idle or name in {e[0] for e in poll.events}}
        if awake - read:
            assert emission.watermark is None
            continue
        times = [highest[name] for name in awake] or [max(highest.values())] if highest else []
        stands = max([*([stands] if stands is not None else []), *([min(times)] if times else [])], default=None)
        assert emission.watermark == stands
        read = set()
