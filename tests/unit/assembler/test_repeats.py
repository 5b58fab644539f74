"""Events that come again: the same ones are dropped, other ones at their positions end the job."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from copy import copy
from dataclasses import replace
from functools import partial

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink.assembler.rules.history import (
    Disproof,
    Places,
    Run,
    Unproved,
    Verdict,
    extended,
    judge,
    knows_all,
    newest,
)
from starrocks_txn_sink.assembler.rules.model import AssemblerState, Policy
from starrocks_txn_sink.assembler.rules.spill import Manifest
from starrocks_txn_sink.errors import SourceChanged
from tests.support.assembler_bench import Bench
from tests.support.assembler_histories import script
from tests.support.assembler_model import Ev, table
from tests.support.incremental_bench import IncrementalBench, named

NONE = np.empty(0, np.int64)
FIRST = script("B D D E B D D E")  # positions 1 to 8


def fed(*batches: list[Ev], policy: Policy | None = None) -> Bench:
    bench = Bench(policy)
    feed_all(bench, batches)
    return bench


def feed_all(bench: Bench, batches: Iterable[list[Ev]]) -> None:
    for batch in batches:
        bench.feed(table(batch))


@pytest.mark.parametrize(
    "again",
    [
        FIRST,
        FIRST[4:],  # the last source transaction
        FIRST[5:7],  # a part of it
        FIRST[-1:],
        FIRST[:3] + FIRST[6:],  # a producer's batches, one of which came once
        [replace(event, kind=f"txn_{event.kind.lower()}") for event in FIRST],
    ],
)
def test_the_same_events_are_dropped_in_silence(again: list[Ev]) -> None:
    bench = fed(FIRST, again, script("B D E", 9))
    assert [row["source_ts"] for row in bench.out] == [20, 30, 60, 70, 100]
    assert (bench.total.repeats, bench.total.unknown_repeats) == (len(again), 0)


def test_the_same_events_of_an_open_transaction_are_dropped_in_silence() -> None:
    bench = fed(FIRST[:3], FIRST[1:4], FIRST[2:])
    assert [row["source_ts"] for row in bench.out] == [20, 30, 60, 70]
    assert bench.total.unknown_repeats == 0


def test_the_same_events_of_interleaved_transactions_are_dropped_in_silence() -> None:
    events = script("Ba Bb Da Db Eb Da Ea")
    bench = fed(events, events[2:], policy=Policy(interleaved=True))
    assert (bench.total.released, bench.total.repeats, bench.total.unknown_repeats) == (2, 5, 0)


@pytest.mark.parametrize(
    "other_event",
    [
        Ev(7, "DATA", row='{"k": "other"}'),
        Ev(7, "BEGIN"),
        Ev(7, "DATA", txn="u"),
        Ev(7, "DATA", txn=None),
        Ev(8, "DATA"),
        Ev(8, "END", txn="u"),
    ],
    ids=str,
)
@pytest.mark.parametrize("whole", [True, False], ids=["all comes again", "alone"])
def test_other_content_at_a_known_position_is_another_source(other_event: Ev, whole: bool) -> None:
    again = (
        [other_event if event.position == other_event.position else event for event in FIRST]
        if whole
        else [other_event]
    )
    with pytest.raises(SourceChanged, match=rf"other content.*position={other_event.position}\b") as caught_error:
        fed(FIRST, again)
    assert "new checkpoint" in str(caught_error.value)
    assert "k" not in caught_error.value.message.split()


def test_a_source_that_begins_again_and_goes_on_releases_nothing() -> None:
    bench = fed(FIRST)
    other_events = [replace(event, row='{"k": 0}') for event in script("B D D E B D D E B D D E")]
    with pytest.raises(SourceChanged):
        bench.feed(table(other_events))
    assert len(bench.out) == 4


def test_an_event_that_was_not_there_between_known_ones_is_another_source() -> None:
    events = [replace(event, position=10 * event.position) for event in FIRST]
    with pytest.raises(SourceChanged, match=r"was not there before.*position=65"):
        fed(events, [replace(events[5], position=65)])


LONG = script(" ".join(["B D D E"] * 500))  # positions 1 to 2000, of which the newest are remembered without a gap


def test_repeats_on_the_way_to_a_remembered_event_are_not_proved_yet() -> None:
    bench = fed(LONG, LONG[100:103])
    (repeats,) = bench.feed(table(LONG[103:105])).repeats
    assert (repeats.events, repeats.unknown, repeats.rows, repeats.first, repeats.last) == (2, 2, 0, 104, 105)
    assert (repeats.notice().name, repeats.notice().fields) == (
        "source.repeated", {"partition": "p0", "position": 104, "upto": 105, "count": 2, "rows": 0},
    )  # fmt: skip
    assert repeats.run == Run(101, 105, 5, proved=False)
    assert bench.total.unknown_repeats == 5
    (repeats,) = bench.feed(table(LONG[105:900])).repeats
    assert (repeats.unknown, repeats.run) == (0, Run(101, 900, 800, proved=True))
    bench.feed(table([*LONG[900:903]]))  # between two remembered events, and the run goes on
    bench.feed(table([*LONG[903:], *script("B D E", 2001)]))
    assert (bench.total.unknown_repeats, bench.total.released) == (5, 501)


@pytest.mark.parametrize("cut", [False, True], ids=["at once", "in two micro-batches"])
def test_a_run_that_ends_without_a_remembered_event_ends_the_query(cut: bool) -> None:
    bench, again, new = fed(LONG), LONG[100:103], script("B D E", 2001)
    batches = [again, new] if cut else [[*again, *new]]
    with pytest.raises(SourceChanged, match=r"^3 event\(s\) .*last_position=2000, .*position=101, upto=103\]"):
        feed_all(bench, batches)
    assert bench.total.released == 500


def test_a_run_that_leaves_a_remembered_event_out_ends_the_query() -> None:
    """Positions of another source lie between those that were there, and it never has any of them."""
    apart = [replace(event, position=10 * event.position) for event in LONG]
    other_source = [replace(event, position=10 * event.position + 5) for event in LONG]
    bench = fed(apart)
    with pytest.raises(SourceChanged, match="none of them is one that the assembler remembers"):
        feed_all(bench, [other_source[start : start + 100] for start in range(0, 2000, 100)])
    assert 0 < bench.total.unknown_repeats < 1000


@pytest.mark.parametrize("size", [7, 100, 2000])
def test_a_source_that_counts_from_one_again_is_found_out_whatever_the_size_of_a_micro_batch(size: int) -> None:
    other_events = [replace(event, row='{"k": 0}') for event in LONG]
    bench = fed(LONG)
    with pytest.raises(SourceChanged):
        feed_all(bench, [other_events[start : start + size] for start in range(0, 2000, size)])
    assert bench.total.released == 500


def test_what_goes_back_needs_a_proof_of_its_own() -> None:
    """Only the first event is remembered: what comes behind a copy of it, from in front, may be another source's."""
    history = extended(b"", 1, np.array([0]), np.array([30]), [7], 256)
    verdict = judge(history, None, np.array([30, 8, 27]), lambda at: [7] * len(at), new=NONE, complete=True)
    assert isinstance(verdict, Verdict)
    assert (verdict.proved.tolist(), verdict.run) == ([True, False, False], Run(8, 27, 3, proved=False))
    verdict = judge(
        history, Run(8, 30, 3, proved=True), np.array([20]), lambda at: [7] * len(at), new=NONE, complete=True
    )
    assert isinstance(verdict, Verdict)
    assert not verdict.proved.any()


@pytest.mark.parametrize("size", [7, 100, 2000])
@pytest.mark.parametrize("written_by", [9, 2000])
def test_a_producer_that_begins_again_anywhere_is_believed(size: int, written_by: int) -> None:
    bench = Bench()
    for start in range(0, 2000, written_by):
        bench.feed(table(LONG[start : start + written_by]))
    events = [*LONG, *script("B D E", 2001)]
    for first in (0, 1, 1500, 1900):
        fresh = copy(bench)
        fresh.out, fresh.blobs = list(bench.out), dict(bench.blobs)
        for start in range(first, len(events), size):
            fresh.feed(table(events[start : start + size]))
        assert fresh.total.released == 501


def test_a_batch_that_an_unsafe_producer_repeats_is_believed() -> None:
    bench = fed(LONG, LONG[1800:1830], script("B D E", 2001))
    assert (bench.total.released, bench.total.unknown_repeats) == (501, 0)


def test_without_comparing_all_repeats_are_unknown() -> None:
    bench = fed(FIRST)
    bench.assembler = replace(bench.assembler, compare=False)
    bench.feed(table([replace(event, row="{}") for event in FIRST]))
    assert (bench.total.repeats, bench.total.unknown_repeats) == (8, 8)


def test_a_state_of_an_earlier_release_is_read_and_remembers_from_then_on() -> None:
    header = orjson.loads(fed(FIRST[:6]).header)
    del header["history"], header["run"]
    state = AssemblerState.from_json(orjson.dumps(header).decode())
    assert (state.last_position, knows_all(state.history)) == (6, False)
    bench = fed(FIRST[:6])
    bench.header = orjson.dumps(header).decode()
    bench.feed(table([*FIRST[4:6], *FIRST[6:]]))
    assert bench.total.unknown_repeats == 2
    with pytest.raises(SourceChanged):
        bench.feed(table([replace(FIRST[6], row="{}")]))


def test_the_newest_events_in_a_state_of_an_earlier_release_are_compared() -> None:
    entry = np.array([(8, 99)], dtype=[("position", "<i8"), ("checksum", "<u4")])
    header = orjson.loads(fed(FIRST).header) | {"recent": base64.b64encode(entry.tobytes()).decode()}
    del header["history"]
    bench = fed(FIRST)
    bench.header = orjson.dumps(header).decode()
    with pytest.raises(SourceChanged, match=r"other content.*position=8\b"):
        bench.feed(table(FIRST))


def test_lanes_remember_over_chunks_micro_batches_and_the_manifest() -> None:
    bench = IncrementalBench()
    for event in FIRST:
        bench.feed(named(table([event]), "a"))
    bench.feed(named(table(FIRST), "a"))
    assert (bench.total.repeats, bench.total.unknown_repeats) == (8, 0)
    state = Manifest.from_json(bench.stored).partitions["a"].state
    assert isinstance(state, AssemblerState)
    assert state.history
    for event in FIRST:
        with pytest.raises(SourceChanged):
            bench.feed(named(table([replace(event, txn="another")]), "a"))


def test_of_many_source_partitions_fewer_events_are_remembered_without_a_gap() -> None:
    bench, names = IncrementalBench(), [f"p{number}" for number in range(300)]
    for events in (FIRST[:2], FIRST[2:], FIRST[3:]):
        bench.feed(pa.concat_tables([named(table(events), name) for name in names]))
    assert (bench.total.repeats, bench.total.unknown_repeats) == (1500, 0)
    with pytest.raises(SourceChanged):
        bench.feed(named(table([replace(FIRST[6], row="{}")]), "p7"))


def test_a_lanes_notice_is_about_all_its_chunks() -> None:
    events = LONG[:1200]
    bench = IncrementalBench()
    bench.feed(named(table(events), "a"), named(table(events), "b"))
    parts = [named(table(events[at : at + 3]), "a") for at in range(100, 109, 3)]
    bench.feed(*parts, named(table(events[1190:]), "b"))
    assert [notice.fields for notice in bench.notices] == [
        {"partition": "a", "position": 101, "upto": 109, "count": 9, "rows": 4}
    ]
    bench.feed(*parts, named(table(events[109:]), "a"))
    assert len(bench.notices) == 1


def checksums(places: Places, at: Places) -> list[int]:
    return [int(place) * 7 for place in places[at]]


@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=30),
    st.data(),
)
def test_a_history_stays_small_and_knows_its_repeats_and_no_others(calls: list[int], data: st.DataObject) -> None:
    room, history, count = data.draw(st.sampled_from([4, 40, 256])), b"", 0
    for size in calls:
        chosen = newest(size, room, history)
        places = np.arange(count, count + size)[chosen] * 3
        history = extended(history, size, chosen, places, (places * 7).tolist(), room)
        count += size
    assert len(history) <= 20 * (max(room, 2) + 2 * 14)
    assert knows_all(history)
    first = data.draw(st.integers(0, count - 1))
    run, proved = None, False
    places = np.arange(first, count) * 3
    for part in np.array_split(places, data.draw(st.integers(1, 5))):
        verdict = judge(history, run, part, partial(checksums, part), new=NONE, complete=True)
        assert isinstance(verdict, Verdict)
        run, proved = verdict.run, bool(verdict.proved.all())
    assert proved
    other = data.draw(st.integers(0, count - 1))
    others = places[places >= other * 3] + 1
    new = np.array([len(others)])
    verdict = judge(history, None, others, lambda at: [0] * len(at), new=new, complete=True)
    if len(others) > 1:
        assert isinstance(verdict, (Disproof, Unproved))
