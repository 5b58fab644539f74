"""A connector that is killed has sent the newest events, and sends old ones again before anybody reads them.

So one micro-batch may have new events with old ones behind them, which no event of it proves. What came in front of
them does not end their run. Where Spark has brought the events together in any order, the next new events end it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from starrocks_spark_stages.assemble.transactions import _take_step
from starrocks_txn_sink.assembler.rules.model import Policy, from_blob, to_blob
from starrocks_txn_sink.errors import SourceChanged
from tests.support.assembler_histories import script
from tests.support.assembler_model import Ev, table
from tests.support.depth import examples
from tests.support.incremental_bench import IncrementalBench, named

CHUNK = 100


class Reader:
    """Reads micro-batches of one source partition; `out` are the positions whose rows were released."""

    def __init__(self) -> None:
        self.out: list[int] = []
        self.told = 0
        """Events that were dropped, and told because nothing proves them yet."""

    def feed(self, events: Sequence[Ev]) -> None:
        raise NotImplementedError


class Lane(Reader):
    def __init__(self, *, arrival_order: bool = True, in_order: bool = True) -> None:
        super().__init__()
        self.bench = IncrementalBench(arrival_order=arrival_order, in_order=in_order)

    def feed(self, events: Sequence[Ev]) -> None:
        self.bench.feed(*self.chunks(events), any_order=self.bench.arrival_order)
        self.out = [row["source_ts"] // 10 for row in self.bench.out.get("a", [])]
        self.told = sum(notice.fields["count"] for notice in self.bench.notices)

    def chunks(self, events: Sequence[Ev]) -> list[pa.Table]:
        return [named(table([*events]), "a")]


class Shuffled(Lane):
    """A small micro-batch behind a shuffle of the query's own."""

    def __init__(self) -> None:
        super().__init__(in_order=False)

    def chunks(self, events: Sequence[Ev]) -> list[pa.Table]:
        return super().chunks(Random(len(events)).sample(events, len(events)))


class Sorted(Lane):
    """Spark has sorted the events, and the lane takes them chunk by chunk."""

    def __init__(self) -> None:
        super().__init__(arrival_order=False)

    def chunks(self, events: Sequence[Ev]) -> list[pa.Table]:
        (whole,) = super().chunks(sorted(events, key=lambda event: event.position))
        return [whole.slice(start, CHUNK) for start in range(0, whole.num_rows, CHUNK)]


class InStage(Reader):
    """`assemble_transactions`: a state operator takes the packed pieces in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.header: str | None = None
        self.blobs: dict[int, bytes] = {}

    def feed(self, events: Sequence[Ev]) -> None:
        pieces = [to_blob(table([*events[start : start + CHUNK]])) for start in range(0, len(events), CHUNK)]
        Random(len(events)).shuffle(pieces)
        read = lambda number: from_blob(self.blobs[number])  # noqa: E731
        change = _take_step(Policy(), "a", self.header, pieces, 0.0, read)
        rows = [from_blob(blob) for _, blob, _ in change.packets if blob is not None]
        self.out += [time // 10 for each in rows for time in each["source_ts"].to_pylist()]
        for number in change.removed:
            del self.blobs[number]
        self.blobs |= {number: to_blob(rows) for number, rows in change.added.items()}
        self.header = change.header


READERS: dict[str, type[Reader]] = {"as they came": Lane, "shuffled": Shuffled, "sorted": Sorted, "stage": InStage}
IN_ORDER, UNORDERED = [Lane], [Shuffled, Sorted, InStage]

EVENTS = script(" ".join(["B D D E"] * 600))  # positions 1 to 2400
BEFORE, NEWEST, NEXT = EVENTS[:2000], EVENTS[2000:2400], script("B D E", 2401)
FAR = slice(100, 103)  # nothing of it is remembered
FRACTION = st.floats(0, 1)
OTHER = [replace(event, row='{"k": "other"}') for event in EVENTS[FAR]]
MANY = [replace(event, row='{"k": "other"}') for event in EVENTS[101:401]]  # nothing of these is, either


def rows_of(events: Sequence[Ev]) -> list[int]:
    return [event.position for event in events if event.kind == "DATA"]


def reading(kind: type[Reader], *batches: Sequence[Ev]) -> Reader:
    reader = kind()
    for batch in batches:
        reader.feed(batch)
    return reader


@pytest.mark.parametrize("kind", READERS.values(), ids=READERS)
@pytest.mark.parametrize("cut", [104, 110, 700, 2399])
def test_old_events_behind_the_newest_ones_wait_for_their_proof(kind: type[Reader], cut: int) -> None:
    reader = reading(kind, BEFORE, [*NEWEST, *EVENTS[FAR]], EVENTS[103:cut], [*EVENTS[cut:], *NEXT])
    assert reader.out == rows_of([*EVENTS, *NEXT])


@pytest.mark.parametrize("kind", [Lane, Shuffled, Sorted])
def test_they_are_told_meanwhile(kind: type[Reader]) -> None:
    assert reading(kind, BEFORE, [*NEWEST, *EVENTS[FAR]]).told == 3


def test_the_stage_tells_them_meanwhile(caplog: pytest.LogCaptureFixture) -> None:
    reading(InStage, BEFORE, [*NEWEST, *EVENTS[FAR]])
    assert "source.repeated" in caplog.text


@pytest.mark.parametrize("kind", READERS.values(), ids=READERS)
def test_new_events_of_a_later_micro_batch_end_their_run(kind: type[Reader]) -> None:
    reader = reading(kind, BEFORE, [*NEWEST, *OTHER])
    with pytest.raises(SourceChanged, match=r"3 event\(s\) came at positions below .* position=101\b"):
        reader.feed(NEXT)


@pytest.mark.parametrize("kind", READERS.values(), ids=READERS)
def test_another_source_that_hides_between_new_events_is_found_in_the_second_micro_batch(kind: type[Reader]) -> None:
    reader = reading(kind, BEFORE, [*NEWEST, *OTHER[:1]])
    with pytest.raises(SourceChanged, match=r"[12] event\(s\) came at positions below"):
        reader.feed([*NEXT, *OTHER[1:2]])


@pytest.mark.parametrize("kind", READERS.values(), ids=READERS)
def test_another_source_of_which_every_micro_batch_has_old_and_new_events_is_found_in_the_second(
    kind: type[Reader],
) -> None:
    """The old ones alone fill chunks of a sorted micro-batch."""
    reader = reading(kind, BEFORE, [*NEWEST[:200], *MANY[:150]])
    with pytest.raises(SourceChanged, match=r"came at positions below"):
        reader.feed([*MANY[150:], *NEWEST[200:]])


@pytest.mark.parametrize("kind", UNORDERED)
def test_what_a_second_kill_leaves_does_not_hide_what_waits(kind: type[Reader]) -> None:
    """A proof of what is further back is none of what waits since a micro-batch before, if new events come with it."""
    reader = reading(kind, BEFORE, [*NEWEST[:200], *MANY[:1]])
    with pytest.raises(SourceChanged, match=r"1 event\(s\) came at positions below .* position=102\b"):
        reader.feed([*EVENTS[:100], *MANY[1:], *NEWEST[200:]])


@pytest.mark.parametrize("kind", IN_ORDER)
def test_new_events_behind_them_end_their_run_at_once(kind: type[Reader]) -> None:
    with pytest.raises(SourceChanged):
        reading(kind, BEFORE, [*NEWEST[:200], *OTHER, *NEWEST[200:]])


@pytest.mark.parametrize("kind", UNORDERED)
def test_a_run_that_was_proved_does_not_speak_for_what_comes_after_new_events(kind: type[Reader]) -> None:
    """Nobody knows whether the new ones came behind it: then it is over."""
    reader = reading(kind, BEFORE, [*NEWEST, *EVENTS[:101]], OTHER[1:])
    with pytest.raises(SourceChanged):
        reader.feed(NEXT)


@pytest.mark.parametrize("kind", READERS.values(), ids=READERS)
@given(st.lists(st.tuples(FRACTION, FRACTION), max_size=4), st.lists(FRACTION, max_size=8))
@examples(60)
def test_a_connector_that_is_killed_again_and_again_is_believed(
    kind: type[Reader], kills: list[tuple[float, float]], cuts: list[float]
) -> None:
    """Each time it has sent a part of what was left, and goes on from a part of what it has sent."""
    sent, at = list[Ev](), 0
    for part, back in kills:
        upto = at + int(part * (len(EVENTS) - at))
        sent, at = [*sent, *EVENTS[at:upto]], int(back * upto)
    sent += EVENTS[at:]
    bounds = sorted({0, len(sent), *(int(cut * len(sent)) for cut in cuts)})
    batches = [sent[start:stop] for start, stop in pairwise(bounds)]
    assert reading(kind, *batches).out == rows_of(EVENTS)
