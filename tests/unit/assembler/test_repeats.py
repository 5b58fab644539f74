"""Events that come again: the same ones are dropped, other ones at their positions end the job."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pyarrow as pa
import pytest

from starrocks_txn_sink.assembler.rules.model import AssemblerState, Policy
from starrocks_txn_sink.assembler.rules.repeats import REMEMBERED
from starrocks_txn_sink.assembler.rules.spill import Manifest
from starrocks_txn_sink.errors import SourceChanged
from tests.support.assembler_bench import Bench
from tests.support.assembler_histories import script
from tests.support.assembler_model import Ev, table
from tests.support.incremental_bench import IncrementalBench, named

FIRST = script("B D D E B D D E")  # positions 1 to 8


def fed(*batches: list[Ev], policy: Policy | None = None) -> Bench:
    bench = Bench(policy)
    for batch in batches:
        bench.feed(table(batch))
    return bench


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


def test_older_repeats_are_counted_as_unknown_unless_the_newest_come_with_them() -> None:
    events = script("B " + "D " * 20 + "E")
    bench = Bench()
    bench.feed(table(events))
    (repeats,) = bench.feed(table(events[:5])).repeats
    assert (repeats.compared, repeats.events, repeats.rows, repeats.first, repeats.last) == (0, 5, 4, 1, 5)
    assert bench.total.unknown_repeats == 5
    notice = repeats.notice()
    assert (notice.name, notice.fields) == (
        "source.repeated", {"partition": "p0", "position": 1, "upto": 5, "count": 5, "rows": 4},
    )  # fmt: skip
    (repeats,) = bench.feed(table(events)).repeats
    assert (repeats.compared, repeats.events) == (REMEMBERED, 22 - REMEMBERED)
    assert bench.total.unknown_repeats == 5


def test_without_comparing_all_repeats_are_unknown() -> None:
    bench = fed(FIRST)
    bench.assembler = replace(bench.assembler, compare=False)
    bench.feed(table([replace(event, row="{}") for event in FIRST]))
    assert (bench.total.repeats, bench.total.unknown_repeats) == (8, 8)


def test_a_state_of_an_earlier_release_is_read_and_remembers_from_then_on() -> None:
    header = orjson.loads(fed(FIRST[:6]).header)
    del header["recent"]
    state = AssemblerState.from_json(orjson.dumps(header).decode())
    assert (state.last_position, state.recent) == (6, b"")
    bench = fed(FIRST[:6])
    bench.header = state.to_json()
    bench.feed(table([*FIRST[4:6], *FIRST[6:]]))
    assert bench.total.unknown_repeats == 2
    with pytest.raises(SourceChanged):
        bench.feed(table([replace(FIRST[6], row="{}")]))


def test_lanes_remember_over_chunks_micro_batches_and_the_manifest() -> None:
    bench = IncrementalBench()
    for event in FIRST:
        bench.feed(named(table([event]), "a"))
    bench.feed(named(table(FIRST), "a"))
    assert (bench.total.repeats, bench.total.unknown_repeats) == (8, 0)
    assert Manifest.from_json(bench.stored).partitions["a"].state.recent
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
    events = script("B " + "D " * 20 + "E")
    bench = IncrementalBench()
    bench.feed(named(table(events), "a"), named(table(events), "b"))
    parts = [named(table(events[at : at + 3]), "a") for at in range(0, 9, 3)]
    bench.feed(*parts, named(table(events[20:]), "b"))
    assert [notice.fields for notice in bench.notices] == [
        {"partition": "a", "position": 1, "upto": 9, "count": 9, "rows": 8}
    ]
    bench.feed(*parts, named(table(events[9:]), "a"))
    assert len(bench.notices) == 1
