"""The core of `verify`: each difference is found, nothing that is equal is reported, also while both sides go on."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, strategies as st

from starrocks_txn_ops.verify.rules import core
from starrocks_txn_ops.verify.rules.core import (
    DIFFERENT,
    EXTRA,
    MISSING,
    Judge,
    Key,
    KeyRange,
    Look,
    Row,
    Rows,
    Sums,
    Verdict,
)

Table = dict[Key, list[Row]]
EXACT = Judge(lambda one, other: one == other)
EACH = Judge(lambda one, other: one == other, each=True)
CASELESS = Judge(lambda one, other: str(one).lower() == str(other).lower(), lenient=True)


@dataclass
class Memory:
    """A side in memory; keys are whole numbers. `asked` has the sizes of what was fetched."""

    table: Table
    asked: list[int] = field(default_factory=list)

    def sums(self, span: KeyRange, digits: int) -> Sums:
        sums: dict[str, tuple[int, int]] = {}
        for key, mark in self._marks(span):
            bucket = _md5(key)[:digits]
            rows, total = sums.get(bucket, (0, 0))
            sums[bucket] = rows + 1, total + int(mark[:15], 16)
        return sums

    def marks(self, span: KeyRange, digits: int, buckets: Sequence[str]) -> Iterable[tuple[Key, str]]:
        found = [pair for pair in self._marks(span) if _md5(pair[0])[:digits] in buckets]
        self.asked.append(len(found))
        return found

    def rows(self, keys: Sequence[Key]) -> Rows:
        self.asked.append(len(keys))
        return {key: self.table[key] for key in keys if key in self.table}

    def all_rows(self, span: KeyRange, most: int) -> Rows | None:
        keys = dict.fromkeys(key for key, _ in self._marks(span))
        found = {key: self.table[key] for key in keys}
        self.asked.append(min(most, sum(map(len, found.values()))))
        return found if sum(map(len, found.values())) <= most else None

    def _marks(self, span: KeyRange) -> list[tuple[Key, str]]:
        low = None if span.low is None else int(span.low)
        high = None if span.high is None else int(span.high)
        return [
            (key, _md5((key, row)))
            for key, rows in self.table.items()
            if (low is None or int(key[0]) >= low) and (high is None or int(key[0]) < high)
            for row in rows
        ]

    # --- of the source alone ---

    def boundary(self, low: str | None, rows: int) -> str | None:
        numbers = sorted(int(key[0]) for key, of_key in self.table.items() for _ in of_key)
        behind = [number for number in numbers if low is None or number >= int(low)]
        return str(behind[rows]) if len(behind) > rows else None

    def after(self, low: str) -> str | None:
        return next((str(number) for number in sorted(int(key[0]) for key in self.table) if number > int(low)), None)

    def count_of(self, span: KeyRange) -> int:
        return len(self._marks(span))


def _md5(value: object) -> str:
    return hashlib.md5(repr(value).encode(), usedforsecurity=False).hexdigest()


def compared(source: Table, target: Table, judge: Judge = EXACT, range_rows: int = 7) -> Verdict:
    """Compare two tables that stand still."""
    ours, theirs, verdict = Memory(source), Memory(target), Verdict(1_000)
    ranges = [*core.spans(ours.boundary, ours.after, ours.count_of, range_rows)]
    core.compare(ours, theirs, ranges, _still(ours, theirs), judge, verdict)
    return verdict


def _still(ours: Memory, theirs: Memory) -> core.Looking:
    return lambda keys, _: Look(ours.rows(keys), theirs.rows(keys), ours.rows(keys), True)


def _sorted(table: Table, key: Key) -> list[str]:
    return sorted(map(str, table.get(key, [])))


KEYS = st.tuples(st.integers(-30, 30).map(str), st.sampled_from("ab"))
ROWS = st.tuples(st.sampled_from((None, "x", "y", "Y")))
TABLES = st.dictionaries(KEYS, st.lists(ROWS, min_size=1, max_size=2), max_size=60)


@given(TABLES, TABLES, st.sampled_from((EXACT, EACH)), st.integers(1, 9), st.sampled_from((0, 4, 4_096)))
def test_all_and_only_the_differences_are_found(
    source: Table, target: Table, judge: Judge, rows: int, of_range: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "EACH_ROWS", of_range)
        verdict = compared(source, target, judge, rows)
    found = {key: kind for kind, keys in verdict.keys.items() for key in keys}
    expected = {
        key
        for key in {*source, *target}
        if sorted(map(str, source.get(key, []))) != sorted(map(str, target.get(key, [])))
    }
    assert found.keys() == expected
    assert verdict.different == len(expected)
    for key, kind in found.items():
        assert (kind == MISSING) == (key not in target)
        assert key in source or kind == EXTRA
    assert not verdict.unsettled


@given(TABLES)
def test_what_a_judge_takes_for_the_same_is_no_difference(source: Table) -> None:
    target = {key: [tuple(text and text.upper() for text in row) for row in rows] for key, rows in source.items()}
    assert compared(source, target, CASELESS).different == 0


@given(TABLES, st.integers(1, 9))
def test_ranges_have_each_row_once_and_have_a_size(source: Table, rows: int) -> None:
    side = Memory(source)
    ranges = [*core.spans(side.boundary, side.after, side.count_of, rows)]
    assert ranges[0].low is None
    assert ranges[-1].high is None
    assert all(one.high == other.low for one, other in itertools.pairwise(ranges))
    sizes = [side.count_of(span) for span in ranges]
    assert sum(sizes) == sum(map(len, source.values()))
    of_one = max((sum(len(rows) for key, rows in source.items() if key[0] == first) for first, _ in source), default=0)
    assert all(size <= max(rows, of_one) for size in sizes)


def test_rows_that_are_equal_never_leave_the_databases() -> None:
    source: Table = {(str(number), "a"): [("x",)] for number in range(2_000)}
    ours, theirs = Memory(source), Memory({**source, ("77", "a"): [("y",)]})
    (suspect,) = core.suspects(ours, theirs, KeyRange(rows=2_000), EXACT)
    assert suspect == ("77", "a")
    assert sum(ours.asked) < 400


def test_many_rows_that_the_source_does_not_have_come_in_small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "BUCKET_ROWS", 4)
    monkeypatch.setattr(core, "RANGE_ROWS", 50)
    theirs = Memory({(str(number), "a"): [("x",)] for number in range(2_000)})
    found = [*core.suspects(Memory({("1", "a"): [("x",)]}), theirs, KeyRange(rows=1), EXACT)]
    assert len(found) == 1_999
    assert max(theirs.asked) <= 50


def test_a_table_that_is_compared_row_by_row_is_read_in_few_questions() -> None:
    source: Table = {(str(number), "a"): [("x",)] for number in range(20_000)}
    ours, theirs = Memory(source), Memory({**source, ("77", "a"): [("y",)]})
    ranges = core.spans(ours.boundary, ours.after, ours.count_of, core.EACH_ROWS)
    assert [key for span in ranges for key in core.suspects(ours, theirs, span, EACH)] == [("77", "a")]
    assert len(ours.asked) == len(theirs.asked) == 5
    assert sum(ours.asked) == 20_000


@pytest.mark.parametrize("rows", [1, 4_096])
def test_far_more_rows_than_the_source_has_are_not_read_at_once(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(core, "EACH_ROWS", 20)
    monkeypatch.setattr(core, "BUCKET_ROWS", 4)
    monkeypatch.setattr(core, "RANGE_ROWS", 50)
    theirs = Memory({(str(number), "a"): [("x",)] for number in range(2_000)})
    found = [*core.suspects(Memory({("1", "a"): [("x",)]}), theirs, KeyRange(rows=rows), EACH)]
    assert len(found) == 1_999
    assert max(theirs.asked) <= 50


@pytest.mark.parametrize("kept", [False, True])
def test_rows_that_the_source_has_deleted_may_stay_by_a_rule(kept: bool) -> None:
    judge = Judge(lambda one, other: one == other, keeps=kept)
    verdict = compared({("1", "a"): [("x",)]}, {("1", "a"): [("x",)], ("2", "a"): [("x",)]}, judge)
    assert verdict.counts[EXTRA] == (0 if kept else 1)


# --- what goes on meanwhile ---


@dataclass
class Moving:
    """A key's row at the source, and in StarRocks, look by look: (before, in StarRocks, after, whether passed).

    `glance` are the rows of the first look, which does not wait: at the source, and in StarRocks.
    """

    looks: list[tuple[str | None, str | None, str | None, bool]]
    glance: tuple[str | None, str | None] = ("one", "other")

    def verdict(self) -> Verdict:
        answers, verdict = iter(self.looks), Verdict(10)

        def rows(text: str | None) -> Rows:
            return {} if text is None else {("1",): [(text,)]}

        def look(keys: Sequence[Key], waits: bool) -> Look:
            assert keys == [("1",)]
            if not waits:
                return Look(rows(self.glance[0]), rows(self.glance[1]), rows(self.glance[0]), False)
            before, target, after, passed = next(answers)
            return Look(rows(before), rows(target), rows(after), passed)

        core.settle([("1",)], look, EXACT, verdict, lambda _: None)
        return verdict


def test_a_row_that_arrives_is_equal() -> None:
    verdict = Moving([("b", "a", "b", True), ("b", "b", "b", True)]).verdict()
    assert not verdict.different
    assert not verdict.unsettled


def test_a_row_that_has_arrived_already_is_waited_for_no_more() -> None:
    verdict = Moving([], ("b", "b")).verdict()
    assert not verdict.different
    assert not verdict.unsettled


def test_many_suspects_are_not_read_once_more_without_a_wait() -> None:
    waits, keys = list[bool](), [(str(number),) for number in range(core.KEYS + 1)]

    def look(_: Sequence[Key], waited: bool) -> Look:
        waits.append(waited)
        return Look({}, {}, {}, True)

    core.settle(keys, look, EXACT, Verdict(0), lambda _: None)
    assert waits == [True]


def test_a_row_that_changed_between_the_two_reads_of_the_source_proves_nothing() -> None:
    hot = [(str(number), str(number + 1), str(number + 2), True) for number in range(core.LOOKS)]
    verdict = Moving(hot).verdict()  # type: ignore[arg-type]
    assert not verdict.different
    assert verdict.unsettled_keys == [("1",)]


@pytest.mark.parametrize(
    ("source", "target", "kind"), [("a", None, MISSING), (None, "a", EXTRA), ("a", "b", DIFFERENT)]
)
def test_a_row_that_rests_and_differs_twice_is_different(source: str | None, target: str | None, kind: str) -> None:
    verdict = Moving([("z", target, source, True), *[(source, target, source, True)] * 2]).verdict()
    assert verdict.keys == {kind: [("1",)]}


def test_once_is_not_enough() -> None:
    verdict = Moving([("a", "b", "a", True), ("b", "b", "b", True)]).verdict()
    assert not verdict.different


def test_nothing_is_proven_in_front_of_the_position() -> None:
    verdict = Moving([("a", "b", "a", False)] * core.LOOKS).verdict()
    assert not verdict.different
    assert verdict.unsettled == 1


def test_the_memory_of_a_table_that_was_emptied_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "ENOUGH", 20)
    monkeypatch.setattr(core, "SUSPECTS", 10)
    verdict = compared({(str(number), "a"): [("x",)] for number in range(100)}, {})
    assert verdict.counts[MISSING] == 20
    assert verdict.uncounted == 80


@pytest.mark.parametrize(("rows", "digits"), [(0, 0), (256, 0), (257, 1), (65_536, 2), (65_537, 3), (10**9, 6)])
def test_buckets_are_small(rows: int, digits: int) -> None:
    assert core.digits_for(rows) == digits


@given(TABLES, TABLES, st.sampled_from((EXACT, EACH)), st.integers(1, 9), st.integers(1, 5))
def test_all_differences_are_taken_in_parts_of_bounded_size(
    source: Table, target: Table, judge: Judge, rows: int, most: int
) -> None:
    """What a repair does with a table of any size: it takes what is found, and the comparison goes on."""
    ours, theirs, verdict = Memory(source), Memory(target), Verdict(0)
    ranges = [*core.spans(ours.boundary, ours.after, ours.count_of, rows)]
    parts = list[list[Key]]()

    def taken() -> bool:
        parts.append(verdict.take())
        return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "ENOUGH", most)
        patch.setattr(core, "SUSPECTS", 2)
        core.compare(ours, theirs, ranges, _still(ours, theirs), judge, verdict, is_taken=taken)
    taken()
    found = [key for part in parts for key in part]
    assert sorted(found) == sorted(key for key in {*source, *target} if _sorted(source, key) != _sorted(target, key))
    assert all(len(part) <= most + 1 for part in parts)
    assert not verdict.uncounted


@given(TABLES, TABLES, st.integers(1, 9), st.integers(1, 5))
def test_the_rest_begins_where_nothing_was_looked_at_again(source: Table, target: Table, rows: int, most: int) -> None:
    ours, theirs, verdict = Memory(source), Memory(target), Verdict(0)
    ranges = [*core.spans(ours.boundary, ours.after, ours.count_of, rows)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "ENOUGH", most)
        patch.setattr(core, "SUSPECTS", 2)
        core.compare(ours, theirs, ranges, _still(ours, theirs), EXACT, verdict)
    found, known = {*verdict.found}, {*verdict.looked}
    different = {key for key in {*source, *target} if _sorted(source, key) != _sorted(target, key)}
    assert len(found) + verdict.uncounted == len(different)
    if verdict.uncounted:  # not one of the others is lost, and none of these comes twice
        low, again = verdict.rest, Verdict(0)
        ranges = [*core.spans(ours.boundary, ours.after, ours.count_of, rows, low=low)]
        core.compare(ours, theirs, ranges, _still(ours, theirs), EXACT, again, keys=known)
        assert sorted(again.found) == sorted(different - found)


def test_nothing_more_is_taken_once_a_repair_does_not_go_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "ENOUGH", 10)
    monkeypatch.setattr(core, "SUSPECTS", 5)
    ours, theirs, verdict = Memory({(str(number), "a"): [("x",)] for number in range(100)}), Memory({}), Verdict(0)
    answers = [True, True, False]

    def taken() -> bool:
        verdict.take()
        return answers.pop(0)

    core.compare(ours, theirs, [KeyRange(rows=100)], _still(ours, theirs), EXACT, verdict, is_taken=taken)
    assert (verdict.different, verdict.uncounted, answers) == (30, 70, [])


def test_keys_that_stay_unsettled_end_the_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that stands still would be waited for at each look."""
    monkeypatch.setattr(core, "ENOUGH", 10)
    monkeypatch.setattr(core, "SUSPECTS", 5)
    ours, looks = Memory({(str(number), "a"): [("x",)] for number in range(100)}), 0

    def look(keys: Sequence[Key], waits: bool) -> Look:
        nonlocal looks
        looks += waits
        return Look(ours.rows(keys), {}, ours.rows(keys), passed=False)

    verdict = Verdict(0)
    core.compare(ours, Memory({}), [KeyRange(rows=100)], look, EXACT, verdict)
    assert (verdict.unsettled, verdict.uncounted, looks) == (10, 90, 2 * core.LOOKS)
