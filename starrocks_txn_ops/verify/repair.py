"""`verify --repair`: writes the source's rows in place of those that are proven to differ, in order with the job.

1. The rows of the keys are read at the source, and its position behind them; then, once the job has passed it, in
   StarRocks. What is equal by now is done.
2. The job is held (`protocol.hold`): it cannot commit, and all that it has committed is visible.
3. StarRocks' rows are read again, then the source's. A key whose rows stayed the same on both sides differs at the very
   place where the job stands: at the source nothing happened to it from a place that the job has passed to one that it
   has not. (If it changed, and came back to the same value, it is written a moment early, and the job repeats both.)
   So what is written is never older than what the job has written. A key that moved waits for the next round.
4. The source's rows are written in one StarRocks transaction with a row of the ledger, whose commit is checked as a
   driver's is. Then the job is given back, and all keys are looked at again, from 1. on.

More keys than one transaction takes are further ones, each by the same steps. So memory is bounded, the job goes on
between them, and what a killed repair has written need not be written again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from starrocks_txn_ops.verify.held import Held, Holder
from starrocks_txn_ops.verify.passage import Passage
from starrocks_txn_ops.verify.progress import Progress
from starrocks_txn_ops.verify.rules import core
from starrocks_txn_ops.verify.rules.core import Key, Row
from starrocks_txn_ops.verify.rules.report import Mended
from starrocks_txn_ops.verify.rules.statements import Questions
from starrocks_txn_ops.verify.rules.writing import NotWritable, Shape
from starrocks_txn_ops.verify.sides import Ask, Side, Source
from starrocks_txn_sink.clock import Clock
from starrocks_txn_sink.errors import Fenced
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol.dead_letters import DeadLetterRow
from starrocks_txn_sink.rows.values.judgement import RowRules, UnfitColumn
from starrocks_txn_sink.writer.value_checks import zone_of

ROUNDS: Final = 8
MOST_KEYS: Final = 20_000
"""Keys that are written together, in one StarRocks transaction."""
MOST_LETTERS: Final = 32_000_000
"""Letters of the source's rows that are in memory for them, which exist four times."""
MOVING: Final = "they changed at each look"
LOST: Final = "the job was taken back before they were written"
UNPROVEN: Final = "the job has not passed the source's position, so nothing is proven"
SEVERAL: Final = "several rows of the source have one key of the table"
NO_MARK: Final = "a table without a primary key, whose deleted rows stay"
_PAUSE: Final = 0.5  # seconds before the next round, times its number


@dataclass(slots=True)
class Work:
    """A comparison whose `keys` were found different; `rules` judge its rows' values, None without.

    What was done: rows `written`, keys `deleted`, keys of both kinds `done`, and those that are `left`, by the reason.
    """

    number: int
    shape: Shape
    judge: core.Judge
    source: Side
    target: Side
    questions: Questions
    keys: list[Key]
    rules: RowRules | None = None
    written: int = 0
    deleted: int = 0
    done: int = 0
    left: Counter[str] = field(default_factory=Counter)
    labels: list[str] = field(default_factory=list)

    @property
    def mended(self) -> Mended:
        """What the report says of it."""
        return Mended(self.written, self.deleted, dict(self.left), tuple(self.labels))

    def rows_of(self, key: Key, rows: Sequence[Row], *, present: bool) -> list[DeadLetterRow]:
        """The rows to send for a key with the source's `rows`. Raises NotWritable."""
        shape = self.shape
        if shape.marks and not shape.keyed:
            raise NotWritable(NO_MARK)
        if shape.keyed and len(rows) > 1:
            raise NotWritable(SEVERAL)
        texts = [shape.upsert(key, row, present=present) for row in rows]
        if not texts and shape.keyed:
            texts = [shape.delete(key)]
        return [DeadLetterRow((), shape.table, self._fitted(text), "") for text in texts]

    def _fitted(self, text: str) -> str:
        try:
            return text if self.rules is None else self.rules.fit(text)
        except UnfitColumn as fault:
            raise NotWritable(f"a value does not fit column {fault.column}: it {fault.reason}") from None


_Look = dict[tuple[int, Key], Sequence[Row]]
"""Rows by a work's number and a key."""


@dataclass(slots=True)
class Repair:
    """Repairs keys of `works`, of about `total` that differ; what it has done is in the works."""

    works: Sequence[Work]
    source: Source
    passage: Passage
    holder: Holder
    progress: Progress
    clock: Clock
    total: int = 0
    _most: int = field(init=False)

    def __post_init__(self) -> None:
        self._most = MOST_KEYS

    def run(self) -> None:
        """Repair all keys of the works. Raises StarRocksSinkError."""
        self.mend([(work, key) for work in self.works for key in work.keys])

    def mend(self, keys: Sequence[tuple[Work, Key]]) -> bool:
        """Repair the keys, as many together as are in one StarRocks transaction; whether not all of them are left.

        Raises StarRocksSinkError.
        """
        rest, pending = self._left(), keys
        while pending:
            pending = [*self._repair(pending[: self._most]), *pending[self._most :]]
        return self._left() - rest < len(keys)

    def _left(self) -> int:
        return sum(work.left.total() for work in self.works)

    def _repair(self, keys: Sequence[tuple[Work, Key]]) -> Sequence[tuple[Work, Key]]:
        """Repair the first of the keys; returns those that are too many for now."""
        reason, later = MOVING, list[tuple[Work, Key]]()
        for number in range(ROUNDS):
            if number:
                self.clock.sleep(_PAUSE * number)
            first_look = self._look(keys, lambda work: work.source, 0 if number else MOST_LETTERS)
            keys, later = keys[: len(first_look)], [*keys[len(first_look) :], *later]
            passed = self.passage.passed(self.source.place())
            target = self._look(keys, lambda work: work.target)
            keys = [(work, key) for work, key in keys if _kind(work, key, first_look, target)]
            if not keys:
                return later
            if not passed:
                reason = UNPROVEN
                continue
            reason = MOVING
            began = self.clock.monotonic()
            try:
                with self.holder.hold() as held:
                    keys = self._mend(keys, first_look, target, held)
            except Fenced as lost:
                self.progress.says(f"The job was taken back before the repair was written; again. ({lost.message})")
                reason, self._most = LOST, max(core.KEYS, len(keys) // 2)  # fewer keys need less time
                keys, later = keys[: self._most], [*keys[self._most :], *later]
            else:
                done = f"repaired {sum(work.done for work in self.works):,} of about {self.total:,} keys"
                self.progress.says(f"The job was held for {self.clock.monotonic() - began:.1f} s; {done}.")
        for work, _ in keys:
            work.left[reason] += 1
        return later

    def _look(self, keys: Iterable[tuple[Work, Key]], side: Callable[[Work], Side], letters: int = 0) -> _Look:
        """The rows of the keys; of the first ones alone, if those have so many `letters` (0: any number)."""
        by_work: dict[int, list[Key]] = {}
        for work, key in keys:
            by_work.setdefault(work.number, []).append(key)
        look: _Look = {}
        size = 0
        for work in self.works:
            for some in core.batches(by_work.get(work.number, []), core.KEYS):
                rows = side(work).rows(some)
                look |= {(work.number, key): sorted(rows.get(key, ()), key=str) for key in some}
                size += sum(len(text or "") for of_key in rows.values() for row in of_key for text in row)
                if 0 < letters <= size:
                    return look
        return look

    def _mend(
        self, keys: Sequence[tuple[Work, Key]], first_look: _Look, target: _Look, held: Held
    ) -> list[tuple[Work, Key]]:
        """Write the rows of those keys that rest; returns the keys to look at again."""
        target_now = self._look(keys, lambda work: work.target)
        second_look = self._look(keys, lambda work: work.source)
        rows, mended, repeats = list[DeadLetterRow](), list[tuple[Work, Key, int]](), list[tuple[Work, Key]]()
        for work, key in keys:
            place = (work.number, key)
            if first_look[place] == second_look[place] and target[place] == target_now[place]:
                try:
                    texts = work.rows_of(key, second_look[place], present=bool(target_now[place]))
                except NotWritable as reason:
                    work.left[str(reason)] += 1
                    continue
                rows += texts
                mended.append((work, key, len(second_look[place])))
            repeats.append((work, key))
        if mended:
            self._empty([(work, key) for work, key, _ in mended if not work.shape.keyed], target_now, held)
            label = held.write(rows) if rows else ""
            for work, _, count in mended:
                work.written += count
                work.deleted += not count
                work.done += 1
                if label and label not in work.labels:
                    work.labels.append(label)
        return repeats

    def _empty(self, keys: Sequence[tuple[Work, Key]], target: _Look, held: Held) -> None:
        """Delete the rows of keys in tables without a primary key: a load cannot replace them."""
        for work in self.works:
            doubled = [key for owner, key in keys if owner is work and target[work.number, key]]
            for some in core.batches(doubled, core.KEYS):
                for statement in work.questions.deletes(some):
                    held.delete(partial(work.target.ask, statement))


def _kind(work: Work, key: Key, source: _Look, target: _Look) -> str | None:
    return work.judge.kind(source[work.number, key], target[work.number, key])


def works_of(
    differences: Iterable[tuple[core.Judge, Shape, Questions, Questions, Sequence[Key]]],
    options: SinkOptions,
    source: Ask,
    target: Ask,
) -> Iterator[Work]:
    """The works of comparisons: judge, shape, the questions of source and StarRocks, keys. `options` decode texts."""
    for number, (judge, shape, ours, theirs, keys) in enumerate(differences):
        decoded = options.decoded(shape.table)
        rules = None
        if options.judges_values(shape.table):
            zone = zone_of(options.timestamp_zone)
            rules = RowRules.of(shape.columns.values(), zone, encodes_bytes=True, decoded=decoded)
        questions = replace(theirs, whole=True)
        yield Work(
            number,
            replace(shape, decoded=decoded),
            judge,
            Side(replace(ours, whole=True), source),
            Side(questions, target),
            questions,
            [*keys],
            rules,
        )
