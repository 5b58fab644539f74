"""A repair beside a job that goes on, in every order of their steps: the source, the job and StarRocks are a model.

Its time passes at each question. What is written must be the source's state at the place where the job stands, or a
newer one: a row that has changed and come back to the same value is written a moment early.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
from collections.abc import Iterator, Sequence
from typing import Any, cast

from starrocks_txn_ops.verify.held import Held, Holder
from starrocks_txn_ops.verify.passage import Passage
from starrocks_txn_ops.verify.progress import Progress
from starrocks_txn_ops.verify.repair import Repair, Work
from starrocks_txn_ops.verify.rules.core import Judge, Key, Rows
from starrocks_txn_ops.verify.rules.pairs import POSTGRESQL, pair_of
from starrocks_txn_ops.verify.rules.statements import Questions
from starrocks_txn_ops.verify.rules.writing import Shape
from starrocks_txn_ops.verify.sides import Side, Source
from starrocks_txn_sink.errors import Fenced
from starrocks_txn_sink.protocol.dead_letters import DeadLetterRow
from starrocks_txn_sink.rows.target import TargetColumn, parse_type
from tests.support.manual_clock import ManualClock

KEYS = [str(number) for number in range(6)]


class World:
    """A source with its log, a job that has written the log up to `place`, and its table, with faults."""

    def __init__(self, seed: int, busy: float) -> None:
        self.rng, self.busy = random.Random(seed), busy
        self.log: list[tuple[str, str | None]] = []
        self.place, self.held, self.lost, self.alive = 0, False, False, True
        self.table: dict[str, str] = {}
        self.wrong: list[str] = []
        self.writes: list[list[bool]] = []  # whether each row of a write is no delete
        for _ in range(20):
            self._commit()
        self._write(20)
        for key in self.rng.sample(KEYS, 3):
            choice = self.rng.choice(["lost", "changed", "extra"])
            self.table.pop(key, None) if choice == "lost" else self.table.update({key: f"{choice} {key}"})

    def state(self, place: int) -> dict[str, str]:
        found: dict[str, str] = {}
        for key, value in self.log[:place]:
            found.pop(key, None) if value is None else found.update({key: value})
        return found

    def pass_time(self) -> None:
        while self.rng.random() < self.busy:
            self._commit() if self.rng.random() < 0.5 else self._go_on()

    def _commit(self) -> None:
        key = self.rng.choice(KEYS)
        self.log.append((key, None if self.rng.random() < 0.3 else f"{key} at {len(self.log)}"))

    def _go_on(self) -> None:
        if self.held and self.rng.random() < 0.05:  # the hold's seconds are over
            self.held, self.lost = False, True
        if not self.held and self.alive:
            self._write(self.rng.randint(0, len(self.log) - self.place))

    def _write(self, transactions: int) -> None:
        for key, value in self.log[self.place : self.place + transactions]:
            self.table.pop(key, None) if value is None else self.table.update({key: value})
        self.place += transactions

    def finish(self) -> None:
        self.held = False
        self._write(len(self.log) - self.place)

    # --- what a repair asks ---

    def passed(self, place: tuple[str, ...]) -> bool:
        self.pass_time()
        assert not self.held
        self._write(max(0, int(place[0]) - self.place))
        return True

    def now(self) -> tuple[str, ...]:
        self.pass_time()
        return (str(len(self.log)),)

    @contextlib.contextmanager
    def hold(self) -> Iterator[Held]:
        self.pass_time()
        self.held, self.lost = True, False
        self.pass_time()
        try:
            yield cast(Held, self)
        finally:
            self.held = False

    def write(self, rows: Sequence[DeadLetterRow]) -> str:
        self.pass_time()
        if self.lost:
            raise Fenced("The job was taken over by another writer.")
        self.writes.append(["__op" not in row.content for row in rows])
        states = [self.state(place) for place in range(self.place, len(self.log) + 1)]
        for row in rows:
            content: dict[str, Any] = json.loads(row.content)
            key = content["k"]
            value = None if "__op" in content else content["v"]
            if all(state.get(key) != value for state in states):
                self.wrong.append(key)
            self.table.pop(key, None) if value is None else self.table.update({key: value})
        self.pass_time()
        return "label"


class ModelSide:
    """The rows of the source now, or of the table."""

    def __init__(self, world: World, *, source: bool) -> None:
        self.world, self.source = world, source

    def rows(self, keys: Sequence[Key]) -> Rows:
        self.world.pass_time()
        rows = self.world.state(len(self.world.log)) if self.source else self.world.table
        return {key: [(rows[key[0]],)] for key in keys if key[0] in rows}


def repaired(world: World) -> Work:
    repair_, work = repair_of(world)
    repair_.run()
    return work


def repair_of(world: World) -> tuple[Repair, Work]:
    columns = {name: TargetColumn(name, parse_type("varchar(100)"), key=name == "k") for name in ("k", "v")}
    pairs = [pair_of(POSTGRESQL, name, "text", name, columns[name].type) for name in ("k", "v")]
    work = Work(
        0,
        Shape("t", columns, pairs[:1], pairs[1:]),
        Judge(lambda source, target: source == target),
        cast(Side, ModelSide(world, source=True)),
        cast(Side, ModelSide(world, source=False)),
        cast(Questions, None),
        [(key,) for key in KEYS],
    )
    clock = ManualClock()
    source = Source(lambda _: [], lambda _: [], ("0",), world.now, lambda: None)
    progress = Progress(io.StringIO(), clock)
    return Repair([work], source, cast(Passage, world), cast(Holder, world), progress, clock), work


def faults_of(world: World, work: Work) -> list[str]:
    """What went wrong: rows that were no state at the job's place, and rows that differ in the end."""
    world.finish()
    right = world.state(len(world.log))
    if work.left:
        return world.wrong
    return world.wrong + [key for key in KEYS if world.table.get(key) != right.get(key)]
