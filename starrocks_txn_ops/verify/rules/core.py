"""The comparison of one table: ranges, buckets, keys, and a look again at what differs. Pure.

1. The source's table is cut into ranges of its key. Of each both sides say how many rows each bucket has, and the sum
   of their marks (`statements`). Buckets that are equal are done: their rows never leave the databases.
2. Of the others both sides give keys and marks, and of the keys that differ the rows, which a judge compares. A table
   whose rows all have to be compared by the judge has shorter ranges, of which both sides give all rows at once.
3. What still differs is suspect, because StarRocks goes on while the snapshot of the source stands still. `settle`
   looks at suspects again, until each is equal or proven to differ:

   - the source's rows now, and its position behind them;
   - once the job has passed this position, StarRocks' rows;
   - the source's rows once more.

   Where the source's row has stayed the same, the row in StarRocks must be this one: all that the first look saw is
   there, and nothing newer exists. So a difference is real, and nothing that is equal can be reported. A row that
   changed meanwhile is looked at again, a bounded number of times; then it is *unsettled*, and said so.

   One case remains: a commit that a replica must confirm reaches the connector before other sessions see it. So a
   difference counts only when it was found in two looks.

   A few suspects are rows that changed since the snapshot, mostly. So they are looked at without a wait first, and what
   is equal then is done.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

_T = TypeVar("_T")

Key = tuple[str, ...]
Row = tuple[str | None, ...]
Rows = Mapping[Key, Sequence[Row]]
Sums = Mapping[str, tuple[int, int]]
"""By bucket: how many rows it has, and the sum of their marks."""

RANGE_ROWS: Final = 65_536
"""Rows of a range, and keys with marks in memory at a time."""
BUCKET_ROWS: Final = 256
KEYS: Final = 400
"""Keys that are asked for in one statement."""
EACH_ROWS: Final = 4_096
"""Rows of a range whose rows are all compared by the judge."""
SUSPECTS: Final = 4_000
"""Suspects that are looked at again together."""
LOOKS: Final = 8
ENOUGH: Final = 20_000
"""Keys of a table that are kept as different, or stay unsettled; the others are counted alone, or left to a repair."""

MISSING, EXTRA, DIFFERENT = "missing", "extra", "different"


@dataclass(frozen=True, slots=True)
class KeyRange:
    """A range of the first key column's texts: from `low` to in front of `high`; None is no limit."""

    low: str | None = None
    high: str | None = None
    rows: int = 0


class Reader(Protocol):
    """One side of a table."""

    def sums(self, span: KeyRange, digits: int) -> Sums:
        """How many rows each bucket of the range has, and the sum of their marks; an empty bucket may be absent."""

    def marks(self, span: KeyRange, digits: int, buckets: Sequence[str]) -> Iterable[tuple[Key, str]]:
        """Key and mark of each row of these buckets; a key comes as often as it has rows."""

    def rows(self, keys: Sequence[Key]) -> Rows:
        """The rows of these keys, at most KEYS of them; a key without a row is absent."""

    def all_rows(self, span: KeyRange, most: int) -> Rows | None:
        """The rows of the range; None if it has more than `most`."""


@dataclass(frozen=True, slots=True)
class Look:
    """The rows of some keys: at the source, then in StarRocks, then at the source again.

    `passed`: the job had passed the position behind the first of them before the second.
    """

    before: Rows
    target: Rows
    after: Rows
    passed: bool


Looking = Callable[[Sequence[Key], bool], Look]
"""Looks at the rows of some keys; True: with a wait until the job has passed the position behind the source's rows."""


@dataclass(frozen=True, slots=True)
class Judge:
    """Whether a source's row and StarRocks' row of a key are the same; `each`: marks do not have all values.

    `keeps`: StarRocks keeps rows that the source has deleted.
    """

    same: Callable[[Row, Row], bool]
    each: bool = False
    lenient: bool = False
    keeps: bool = False

    def kind(self, source: Sequence[Row], target: Sequence[Row]) -> str | None:
        """What is wrong with a key's rows, None if nothing is."""
        if not source and self.keeps:
            return None
        left = [*target]
        for row in source:
            found = next((number for number, other in enumerate(left) if self.same(row, other)), None)
            if found is None:
                return MISSING if not target else EXTRA if len(target) > len(source) else DIFFERENT
            del left[found]
        return EXTRA if left else None


@dataclass(slots=True)
class Verdict:
    """What a table's comparison has found; of each kind the first `shown` keys, and in `found` all that are counted.

    `uncounted` keys were suspect, and not looked at again; the first of them is in the range that begins at `rest`.
    `looked` has the keys that were, and are different or unsettled.
    """

    shown: int
    counts: Counter[str] = field(default_factory=Counter)
    keys: dict[str, list[Key]] = field(default_factory=dict)
    unsettled: int = 0
    unsettled_keys: list[Key] = field(default_factory=list)
    uncounted: int = 0
    rest: str | None = None
    found: list[Key] = field(default_factory=list)
    looked: list[Key] = field(default_factory=list)

    def take(self) -> list[Key]:
        """The keys in `found`, which make room for others."""
        found = [*self.found]
        self.found.clear()
        self.looked.clear()
        return found

    @property
    def different(self) -> int:
        """How many keys are proven to differ."""
        return sum(self.counts.values())

    @property
    def full(self) -> bool:
        """Whether no further key is looked at again until somebody has taken those in `found`."""
        return len(self.found) >= ENOUGH or self.unsettled >= ENOUGH

    def proven(self, kind: str, key: Key) -> None:
        """Count a difference of this kind (MISSING, EXTRA, DIFFERENT), and keep the key if there is room."""
        self.counts[kind] += 1
        self.found.append(key)
        self.looked.append(key)
        named = self.keys.setdefault(kind, [])
        if len(named) < self.shown:
            named.append(key)

    def passed_over(self, low: str | None) -> None:
        """Count a suspect of the range that begins at `low`, without another look."""
        if not self.uncounted:
            self.rest = low
        self.uncounted += 1

    def left(self, key: Key) -> None:
        """Count a key that stays unsettled, and keep it if there is room."""
        self.unsettled += 1
        self.looked.append(key)
        if len(self.unsettled_keys) < self.shown:
            self.unsettled_keys.append(key)


def digits_for(rows: int) -> int:
    """How many digits of a key's MD5 make buckets of about BUCKET_ROWS rows."""
    return max(0, math.ceil(math.log(max(rows, 1) / BUCKET_ROWS, 16))) if rows > BUCKET_ROWS else 0


def spans(
    boundary: Callable[[str | None, int], str | None],
    next_start: Callable[[str], str | None],
    count: Callable[[KeyRange], int],
    rows: int = RANGE_ROWS,
    *,
    low: str | None = None,
) -> Iterator[KeyRange]:
    """The ranges of a table, each of about `rows` rows; together they have every possible key from `low` on.

    `boundary` gives the key that is so many rows behind another, `next_start` the next one; None at the end. A key
    value with more rows than a range has one of its own, whose size `count` says.
    """
    while True:
        high = boundary(low, rows)
        if high is None:
            yield KeyRange(low, None, rows)
            return
        size = rows
        if high == low:  # all these rows have one value in the first column of the key
            high = next_start(high)
            size = count(KeyRange(low, high))
        yield KeyRange(low, high, size)
        if high is None:
            return
        low = high


def both(one: Callable[[], _T], other: Callable[[], _T]) -> tuple[_T, _T]:
    """Both results; the second is asked for in a thread of its own, as it is another database's."""
    with ThreadPoolExecutor(1) as pool:
        later = pool.submit(other)
        first = one()
        return first, later.result()


def suspects(source: Reader, target: Reader, span: KeyRange, judge: Judge) -> Iterator[Key]:
    """The keys of a range whose rows differ between the source's snapshot and StarRocks, as it is now."""
    if judge.each and span.rows <= EACH_ROWS:
        all_ours, all_theirs = both(lambda: _all_rows(source, span), lambda: _all_rows(target, span))
        if all_ours is not None and all_theirs is not None:
            yield from _unlike({**all_ours, **all_theirs}, all_ours, all_theirs, judge)
            return
    digits = digits_for(span.rows)
    ours, theirs = _sums(source, target, span, digits)
    rows = max(sum(rows for rows, _ in sums.values()) for sums in (ours, theirs)) if ours or theirs else 0
    if digits_for(rows) > digits + 1:  # StarRocks has far more rows in the range than the source
        digits = digits_for(rows)
        ours, theirs = _sums(source, target, span, digits)
    buckets = sorted(
        bucket for bucket in ours.keys() | theirs.keys() if judge.each or ours.get(bucket) != theirs.get(bucket)
    )
    for some in _groups(buckets, ours, theirs):
        yield from _suspects_of(source, target, span, judge, digits, some)


def _sums(source: Reader, target: Reader, span: KeyRange, digits: int) -> tuple[Sums, Sums]:
    return both(lambda: source.sums(span, digits), lambda: target.sums(span, digits))


def _groups(buckets: Iterable[str], ours: Sums, theirs: Sums) -> Iterator[list[str]]:
    """The buckets in groups of as many rows as fit into memory."""
    group, size = list[str](), 0
    for bucket in buckets:
        rows = max(ours.get(bucket, (0, 0))[0], theirs.get(bucket, (0, 0))[0])
        if group and size + rows > RANGE_ROWS:
            yield group
            group, size = [], 0
        group.append(bucket)
        size += rows
    if group:
        yield group


def _suspects_of(
    source: Reader, target: Reader, span: KeyRange, judge: Judge, digits: int, buckets: Sequence[str]
) -> Iterator[Key]:
    ours, theirs = both(
        lambda: _by_key(source.marks(span, digits, buckets)), lambda: _by_key(target.marks(span, digits, buckets))
    )
    if judge.keeps:
        theirs = {key: marks for key, marks in theirs.items() if key in ours}
    different = [key for key in {**ours, **theirs} if judge.each or ours.get(key) != theirs.get(key)]
    for keys in batches(different, KEYS):
        if not (judge.lenient or judge.each):
            yield from keys
            continue
        rows, others = both(lambda keys=keys: source.rows(keys), lambda keys=keys: target.rows(keys))  # type: ignore[misc]
        yield from _unlike(keys, rows, others, judge)


def _all_rows(side: Reader, span: KeyRange) -> Rows | None:
    return side.all_rows(span, 2 * EACH_ROWS)  # one side may have some more than the range had when it was cut


def _unlike(keys: Iterable[Key], source: Rows, target: Rows, judge: Judge) -> Iterator[Key]:
    return (key for key in keys if judge.kind(source.get(key, ()), target.get(key, ())) is not None)


def batches(keys: Sequence[Key], size: int) -> Iterator[Sequence[Key]]:
    """The keys in pieces of `size`; the last one may be shorter."""
    return (keys[start : start + size] for start in range(0, len(keys), size))


def _by_key(marks: Iterable[tuple[Key, str]]) -> dict[Key, tuple[str, ...]]:
    found: dict[Key, tuple[str, ...]] = {}
    for key, mark in marks:
        found[key] = tuple(sorted((*found[key], mark))) if key in found else (mark,)
    return found


def settle(keys: Sequence[Key], look: Looking, judge: Judge, verdict: Verdict, pause: Callable[[int], None]) -> None:
    """Look at suspects until each is equal, proven to differ, or LOOKS are over; the result goes into `verdict`."""
    pending, seen = [*keys], Counter[Key]()
    if 0 < len(pending) <= KEYS:
        glance = look(pending, False)
        pending = [*_unlike(pending, glance.before, glance.target, judge)]
    for number in range(LOOKS):
        if not pending:
            return
        if number:
            pause(number)
        seen_now = look(pending, True)
        left = []
        for key in pending:
            before, target, after = (rows.get(key, ()) for rows in (seen_now.before, seen_now.target, seen_now.after))
            kind = judge.kind(before, target)
            if kind is None or judge.kind(after, target) is None:
                continue
            seen[key] = seen[key] + 1 if seen_now.passed and sorted(before, key=str) == sorted(after, key=str) else 0
            if seen[key] == 2:
                verdict.proven(kind, key)
            else:
                left.append(key)
        pending = left
    for key in pending:
        verdict.left(key)


def compare(
    source: Reader,
    target: Reader,
    ranges: Iterable[KeyRange],
    look: Looking,
    judge: Judge,
    verdict: Verdict,
    told: Callable[[KeyRange, int], None] = lambda _, __: None,
    pause: Callable[[int], None] = lambda _: None,
    is_taken: Callable[[], bool] = lambda: False,
    keys: Collection[Key] = (),
) -> None:
    """Compare a table range by range; `told` hears each range that is done, with the suspects of it.

    When ENOUGH keys are found, `is_taken` may take them out of the verdict, and says whether to go on with others;
    those are counted alone otherwise. `keys` are in the verdict already.
    """
    waiting, goes_on = list[Key](), True
    for span in ranges:
        differences = 0
        for key in suspects(source, target, span, judge):
            if key in keys:
                continue
            differences += 1
            if not goes_on or (verdict.full and not (goes_on := is_taken())):
                verdict.passed_over(span.low)
                continue
            waiting.append(key)
            if len(waiting) >= SUSPECTS:
                _settle_all(waiting, look, judge, verdict, pause)
        told(span, differences)
    _settle_all(waiting, look, judge, verdict, pause)


def _settle_all(
    waiting: list[Key],
    look: Looking,
    judge: Judge,
    verdict: Verdict,
    pause: Callable[[int], None],
) -> None:
    settle(waiting, look, judge, verdict, pause)
    waiting.clear()
