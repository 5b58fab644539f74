"""The rules over chunks of many source partitions give what they give over whole micro-batches of one."""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink.assembler.rules import release
from starrocks_txn_sink.assembler.rules.assembler import TransactionAssembler
from starrocks_txn_sink.assembler.rules.intake import PartitionedEvents
from starrocks_txn_sink.assembler.rules.model import MissingBegin, Policy
from starrocks_txn_sink.errors import InputError, SourceTransactionError, Unordered
from tests.support.assembler_bench import Bench
from tests.support.assembler_histories import histories, script
from tests.support.assembler_model import Ev, table
from tests.support.incremental_bench import IncrementalBench, named


def chunks(batches: list[list[Ev]], names: str, size: int) -> list[pa.Table]:
    """One micro-batch: each source partition's events in order, cut into chunks of `size`."""
    whole = pa.concat_tables([named(table(events), name) for name, events in zip(names, batches, strict=True)])
    return [whole.slice(start, size) for start in range(0, whole.num_rows, size)]


def agree(histories: list[list[list[Ev]]], policy: Policy, size: int, held_rows: int) -> None:
    """`histories` of source partitions a, b, …: micro-batches sorted, as after a shuffle."""
    names = "abcde"[: len(histories)]
    benches = {name: Bench(policy) for name in names}
    chunked = IncrementalBench(policy, arrival_order=False, held_rows=held_rows)
    for number in range(max(map(len, histories))):
        batches = [sorted(history[number], key=lambda e: e.position) if number < len(history) else []
                   for history in histories]  # fmt: skip
        try:
            for name, events in zip(names, batches, strict=True):
                benches[name].feed(table(events))
        except SourceTransactionError:
            with pytest.raises(SourceTransactionError):
                chunked.feed(*chunks(batches, names, size))
            return
        chunked.feed(*chunks(batches, names, size))
        assert {name: bench.out for name, bench in benches.items() if bench.out} == chunked.out
    counts = [bench.total.as_dict() for bench in benches.values()]
    sums = {field: sum(count[field] for count in counts) for field in counts[0]}
    totals = chunked.total.as_dict()
    for name in ("state_bytes", "unknown_repeats"):  # of other slices of the same rows; judged for each chunk
        del sums[name], totals[name]
    assert totals == sums


SEVERAL = st.integers(1, 5)
SIZES = st.integers(1, 30)
HELD = st.sampled_from([0, 200, 1 << 20])


@given(st.data(), SEVERAL, SIZES, HELD)
def test_any_chunks_of_any_source_partitions_give_what_whole_batches_give(
    data: st.DataObject, count: int, size: int, held_rows: int
) -> None:
    drawn_histories = [data.draw(histories(interleaved=False, well_formed=True)) for _ in range(count)]
    agree(drawn_histories, Policy(), size, held_rows)


@given(st.data(), SEVERAL, SIZES, HELD, st.booleans(), st.sampled_from(["fail", "drop", "accept"]))
def test_ill_formed_histories_follow_the_policy_in_chunks_too(
    data: st.DataObject, count: int, size: int, held_rows: int, interleaved: bool, missing_begin: MissingBegin
) -> None:
    drawn_histories = [data.draw(histories(interleaved=interleaved, well_formed=False)) for _ in range(count)]
    agree(drawn_histories, Policy(interleaved=interleaved, missing_begin=missing_begin), size, held_rows)


@given(histories(interleaved=False, well_formed=True), SIZES)
def test_as_they_come_events_are_right_or_refused(batches: list[list[Ev]], size: int) -> None:
    """Without a sort nothing is dropped as a repeat that only came late."""
    bench, chunked = Bench(), IncrementalBench()
    for batch in batches:
        bench.feed(table(batch))
        positions = [event.position for event in batch]
        ascending = all(a < b for a, b in itertools.pairwise(positions))
        if not ascending:
            with pytest.raises((Unordered, SourceTransactionError)):  # of a DATA that comes before its BEGIN
                chunked.feed(*chunks([batch], "a", size))
            return
        chunked.feed(*chunks([batch], "a", size))
        assert chunked.out.get("a", []) == bench.out


@given(histories(interleaved=False, well_formed=True))
def test_events_that_come_all_at_once_may_be_in_any_order(batches: list[list[Ev]]) -> None:
    bench, chunked = Bench(), IncrementalBench()
    for batch in batches:
        bench.feed(table(batch))
        if batch:
            chunked.feed(named(table(batch), "a"), any_order=True)
        assert chunked.out.get("a", []) == bench.out


@given(st.data(), st.integers(3, 6))
def test_several_source_partitions_all_at_once_may_be_mixed_in_any_order(data: st.DataObject, count: int) -> None:
    drawn_histories = [data.draw(histories(interleaved=False, well_formed=True)) for _ in range(count)]
    names = [f"p-{number}" for number in range(count)]
    benches, chunked = {name: Bench() for name in names}, IncrementalBench()
    for number in range(max(map(len, drawn_histories))):
        batches = [history[number] if number < len(history) else [] for history in drawn_histories]
        for name, events in zip(names, batches, strict=True):
            benches[name].feed(table(events))
        mixed = pa.concat_tables([named(table(events), name) for name, events in zip(names, batches, strict=True)])
        order = data.draw(st.permutations(range(mixed.num_rows)))
        if order:
            chunked.feed(mixed.take(pa.array(order)), any_order=True)
        assert {name: bench.out for name, bench in benches.items() if bench.out} == chunked.out


def story(random: Random) -> list[Ev]:
    """The events of one source partition: source transactions with names of their own, some without rows."""
    events, position = list[Ev](), random.randrange(5)
    for number in range(random.randrange(12)):
        kinds = ["BEGIN", *["DATA"] * random.choice((0, 1, 1, 2, 3, 5)), "END"]
        for kind in kinds:
            position += random.randint(1, 3)
            name = None if kind != "BEGIN" and random.random() < 0.2 else f"t{number}"
            events.append(Ev(position, kind, name, row=f"{position}"))
    return events


def mixed(batches: dict[str, list[Ev]], random: Random) -> pa.Table:
    """Each source partition's events in order, in pieces between those of others."""
    pieces, queues = [], {name: list(events) for name, events in batches.items() if events}
    while queues:
        name = random.choice(sorted(queues))
        count = random.randint(1, 6)
        pieces.append(named(table(queues[name][:count]), name))
        queues[name] = queues[name][count:]
        queues = {name: events for name, events in queues.items() if events}
    return pa.concat_tables(pieces)


@pytest.mark.parametrize("seed", range(36))
def test_many_source_partitions_give_what_each_gives_alone(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut anywhere, some events sent again by the next micro-batch, carried-over rows joined with new ones or apart."""
    random = Random(seed)
    monkeypatch.setattr(release, "READ_BYTES", random.choice((1, 200, release.READ_BYTES)))
    monkeypatch.setattr(release, "MANY_ROWS", random.choice((0, release.MANY_ROWS)))
    monkeypatch.setattr(release, "MANY_TABLES", random.choice((1, release.MANY_TABLES)))
    names = random.sample([f"p-{number}" for number in range(20)], random.randint(3, 8))
    stories, at = {name: story(random) for name in names}, dict.fromkeys(names, 0)
    benches, chunked = {name: Bench() for name in names}, IncrementalBench(held_rows=random.choice((0, 100, 1 << 20)))
    while any(at[name] < len(stories[name]) for name in names):
        batches = {}
        for name in names:
            again = random.choice((0, 0, 0, 0, 0, 1, 3)) if seed % 3 == 0 else 0
            first, at[name] = max(0, at[name] - again), min(len(stories[name]), at[name] + random.randint(0, 9))
            batches[name] = stories[name][first : at[name]]
            benches[name].feed(table(batches[name]))
        if not any(batches.values()):
            continue
        events = mixed(batches, random)
        if seed % 2:
            chunked.feed(events.take(pa.array(random.sample(range(len(events)), len(events)))), any_order=True)
        else:
            size = random.choice((7, 20, 1000))
            chunked.feed(*(events.slice(start, size) for start in range(0, len(events), size)))
        assert {name: bench.out for name, bench in benches.items() if bench.out} == chunked.out
    counts = [bench.total.as_dict() for bench in benches.values()]
    sums = {field: sum(count[field] for count in counts) for field in counts[0] if field != "state_bytes"}
    assert {field: count for field, count in chunked.total.as_dict().items() if field in sums} == sums


def chunk(**scripts: str) -> pa.Table:
    return pa.concat_tables([named(table(script(text)), name) for name, text in scripts.items()])


def later(*parts: tuple[str, str, int]) -> pa.Table:
    return pa.concat_tables([named(table(script(text, first)), name) for name, text, first in parts])


def test_many_source_partitions_take_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that lose a transaction, or tell events again, among them."""
    chunked = IncrementalBench()
    passes: list[list[str | int]] = []
    feed = TransactionAssembler.feed

    def noted(assembler: TransactionAssembler, events: PartitionedEvents, *arguments: Any) -> Any:
        passes.append(events.names)
        return feed(assembler, events, *arguments)

    monkeypatch.setattr(TransactionAssembler, "feed", noted)
    chunked.feed(chunk(a="B D E B D", b="B D D", c="B E B", d="B D D E"))
    chunked.feed(later(("a", "D E", 6), ("b", "D", 4), ("c", "D E", 4)))
    assert {name: [row["seq"] for row in rows] for name, rows in chunked.out.items()} == {
        "a": [0, 0, 1], "c": [0], "d": [0, 1]
    }  # fmt: skip
    assert (chunked.total.released, chunked.total.empty, chunked.total.open, chunked.total.open_rows) == (4, 1, 1, 3)
    chunked.feed(later(("a", "B D", 8), ("b", "B D E", 5), ("c", "D E B D E", 4), ("d", "B D", 5)))
    assert passes == [["a", "b", "c", "d"], ["a", "b", "c"], ["a", "b", "c", "d"]]
    assert (chunked.total.abandoned, chunked.total.abandoned_rows, len(chunked.out["b"])) == (1, 3, 1)
    assert (chunked.total.repeats, len(chunked.out["c"])) == (2, 2)


@pytest.mark.parametrize(
    ("text", "message"), [("D E", "BEGIN was never seen"), ("B Dx E", "belongs to another source transaction")]
)
def test_an_error_among_many_source_partitions_names_its_place(text: str, message: str) -> None:
    with pytest.raises(SourceTransactionError, match=rf"{message}.*partition=b"):
        IncrementalBench().feed(chunk(a="B D E", b=text, c="B D E"))


def test_the_first_source_partition_with_an_error_is_named_whatever_is_wrong_with_later_ones() -> None:
    """An unknown type is found before a missing BEGIN, but an error must not depend on the others in the chunk."""
    unknown = named(table([Ev(1, "BEGIN"), Ev(2, "COMMIT")]), "c")
    events = pa.concat_tables([chunk(a="B D E", b="B D E D"), unknown])
    with pytest.raises(SourceTransactionError, match=r"BEGIN was never seen.*partition=b, position=4"):
        IncrementalBench().feed(events)
    late = pa.concat_tables([chunk(a="B D E"), unknown, named(table([Ev(2, "BEGIN"), Ev(1, "DATA")]), "b")])
    with pytest.raises(InputError, match=r"unknown type.*partition=c, position=2"):
        IncrementalBench().feed(late)
    with pytest.raises(SourceTransactionError, match=r"BEGIN was never seen.*partition=b, position=1"):
        IncrementalBench().feed(late, any_order=True)


def test_carried_over_rows_of_other_columns_stay_apart() -> None:
    """A query that goes on with one more column has open rows without it."""
    chunked, earlier = IncrementalBench(), chunk(a="B D", b="B D", c="B D D")
    chunked.feed(earlier.drop_columns(["source_ts"]))
    chunked.feed(later(("a", "D E", 3), ("b", "E", 3), ("c", "D E B D E", 4)))
    assert {name: [row.get("source_ts") for row in rows] for name, rows in chunked.out.items()} == {
        "a": [None, 30], "b": [None], "c": [None, None, 40, 70]
    }  # fmt: skip
    assert [row["transaction_end"] for row in chunked.out["c"]] == [False, False, True, True]
    assert [row["seq"] for row in chunked.out["c"]] == [0, 1, 2, 0]


def test_a_carried_source_transaction_is_not_mixed_with_another_one() -> None:
    chunked = IncrementalBench()
    chunked.feed(chunk(a="B D", b="B D", c="B D"))
    with pytest.raises(SourceTransactionError, match=r"belongs to another source transaction.*partition=b"):
        chunked.feed(later(("a", "E", 3), ("b", "Dx E", 3), ("c", "E", 3)))


@pytest.mark.parametrize("missing_begin", ["accept", "drop"])
def test_the_policy_for_a_missing_begin_holds_among_many_source_partitions(missing_begin: MissingBegin) -> None:
    policy = Policy(missing_begin=missing_begin)
    chunked, bench = IncrementalBench(policy), Bench(policy)
    for text, first in (("D D E B D E D", 1), ("D D", 8), ("E B D E", 10)):
        chunked.feed(later(("a", "B D E", 3 * first), ("b", text, first), ("c", "B D E", 3 * first)))
        bench.feed(table(script(text, first)))
        assert chunked.out.get("b", []) == bench.out
    assert (len(chunked.out["b"]), chunked.total.dropped) == (
        7 if missing_begin == "accept" else 2,
        bench.total.dropped,
    )


def test_two_events_at_one_position_are_refused_between_chunks_of_many_source_partitions() -> None:
    first = later(("a", "B D E", 1), ("b", "B D E", 1), ("c", "B D", 1))
    again = pa.concat_tables([named(table([Ev(2, "DATA", row="other"), Ev(3, "END")]), "c"), later(("d", "B D E", 1))])
    third = later(("e", "B D E", 1))
    with pytest.raises(InputError, match=r"same position.*partition=c, position=2"):
        IncrementalBench(arrival_order=False).feed(first, pa.concat_tables([again, third]))
    chunked = IncrementalBench(arrival_order=False)
    chunked.feed(first, later(("c", "D E", 2), ("d", "B D E", 1), ("e", "B D E", 1)))
    assert (len(chunked.out["c"]), chunked.total.repeats) == (1, 1)


def test_an_event_that_comes_twice_counts_once_among_many_source_partitions_too() -> None:
    chunked = IncrementalBench(arrival_order=False)
    chunked.feed(later(("a", "B D", 1), ("a", "D E", 2), ("b", "B D E", 1), ("c", "B D E", 1)))
    assert {name: len(rows) for name, rows in chunked.out.items()} == {"a": 1, "b": 1, "c": 1}
    assert chunked.total.repeats == 1


def test_repeats_of_an_earlier_micro_batch_are_no_disorder() -> None:
    chunked = IncrementalBench()
    chunked.feed(named(table(script("B D D")), "a"))
    chunked.feed(named(table(script("B D D E")), "a"))
    assert (len(chunked.out["a"]), chunked.total.repeats) == (2, 3)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_two_events_at_one_position_are_refused_wherever_a_chunk_ends(size: int) -> None:
    events = [*script("B D"), Ev(2, "DATA", row="other"), *script("E", 3)]
    with pytest.raises(InputError, match="same position"):
        IncrementalBench(arrival_order=False).feed(*chunks([events], "a", size))


def test_a_huge_transaction_is_not_held_in_memory() -> None:
    """Rows beyond the limit are spilled as they come, and come back piece by piece."""
    chunked = IncrementalBench(held_rows=20_000)
    body = [Ev(n, "DATA", row="x" * 500) for n in range(2, 1002)]
    events = [Ev(1, "BEGIN"), *body, Ev(1002, "END")]
    chunked.feed(*chunks([events], "a", 20))
    assert len(chunked.out["a"]) == 1000
    assert chunked.peak < 40_000
    assert [row["seq"] for row in chunked.out["a"]] == list(range(1000))


def test_a_long_open_transaction_costs_each_micro_batch_its_own_rows_only() -> None:
    chunked = IncrementalBench()
    chunked.feed(named(table(script("B")), "a"))
    sizes = []
    for number in range(100):
        events = [Ev(2 + number * 100 + n, "DATA", row="x" * 300) for n in range(100)]
        before = chunked.directory.written
        chunked.feed(named(table(events), "a"))
        sizes.append(chunked.directory.written - before)
    data = 100 * 100 * 300
    assert max(sizes) < 1.3 * min(sizes)
    assert chunked.directory.written < 1.5 * data
    assert len(chunked.manifest.partitions["a"].places) == 100
    chunked.feed(named(table([Ev(20_000, "END")]), "a"))
    assert len(chunked.out["a"]) == 10_000
    assert chunked.manifest.partitions["a"].places == {}


def test_small_tails_live_in_the_manifest() -> None:
    chunked = IncrementalBench()
    chunked.feed(named(table(script("B D D")), "a"))
    assert chunked.directory.files == {}
    assert len(chunked.manifest.inline) == 1
    chunked.feed(named(table(script("E", 4)), "a"))
    assert (len(chunked.out["a"]), chunked.manifest.inline) == (2, {})


def test_open_timeout_is_judged_after_the_micro_batch_for_all_source_partitions() -> None:
    chunked = IncrementalBench(Policy(open_timeout=10, on_open_timeout="drop"))
    chunked.feed(named(table(script("B D")), "a"), named(table(script("B D")), "b"), now=0)
    chunked.feed(named(table(script("D", 3)), "a"), named(table(script("E", 4)), "a"), now=11)
    assert len(chunked.out["a"]) == 2, "its END came in the micro-batch that is late"
    assert (chunked.total.dropped, chunked.total.dropped_rows, chunked.total.open) == (1, 1, 0)
    late = IncrementalBench(Policy(open_timeout=10))
    late.feed(named(table(script("B D")), "a"), now=0)
    with pytest.raises(SourceTransactionError, match="open_timeout"):
        late.feed(named(table(script("B D E")), "b"), now=11)


def test_memory_of_a_large_chunk_is_let_go_when_little_of_it_stays() -> None:
    rows: list[Any] = [Ev(1, "BEGIN"), *(Ev(n, "DATA", row="x" * 500) for n in range(2, 900)), Ev(900, "END")]
    rows += [Ev(901, "BEGIN"), Ev(902, "DATA", row="y")]
    chunked = IncrementalBench()
    chunked.feed(named(table(rows), "a"), named(table([Ev(903, "DATA", row="z")]), "a"))
    assert len(chunked.out["a"]) == 898
