"""Random events through the assembler's rules: nothing but typed errors, and no row without a count.

Each history is one source partition under a random policy, cut into micro-batches of random sizes: begins, rows and
ends of several source transactions in any order, repeats, events that break the contract, waits. After each step every
row that came in is released, held, or counted as repeated, abandoned or dropped; a row is released once at most.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from starrocks_txn_sink.assembler.rules import model
from starrocks_txn_sink.assembler.rules.assembler import AssemblerStep, PartitionChange, TransactionAssembler
from starrocks_txn_sink.assembler.rules.intake import one_partition
from starrocks_txn_sink.assembler.rules.model import (
    AssemblerState,
    Counters,
    MissingBegin,
    OnOpenTimeout,
    Policy,
    from_blob,
    to_blob,
)
from starrocks_txn_sink.errors import InputError, OptionError

SCHEMA = pa.schema([*model.EVENT_FIELDS, ("serial", pa.int64())])
_KINDS = np.array(["BEGIN", "DATA", "END", "begin", "TXN_END", "data"])
_WEIGHTS = {"usual": (4, 20, 4, 1, 1, 1), "torn": (10, 10, 10, 1, 1, 1), "long": (1, 200, 1, 0, 0, 0)}


def fuzz_events(count: int, seed: int) -> dict[str, int]:
    """Feed at least `count` events; returns what became of them, raises AssertionError for a broken rule."""
    rng = random.Random(seed)
    total: Counter[str] = Counter()
    while total["events"] < count:
        history = History(rng)
        history.run()
        total.update(history.figures)
    return dict(total)


@dataclass
class History:
    """One source partition from its beginning to a random end."""

    rng: random.Random
    figures: Counter[str] = field(default_factory=Counter)
    state: AssemblerState = field(default_factory=AssemblerState)
    blobs: dict[int, bytes] = field(default_factory=dict)
    released: list[npt.NDArray[np.int64]] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = self.rng
        self.policy = Policy(
            interleaved=rng.random() < 0.5,
            open_timeout=rng.choice((None, 1.0, 50.0)),
            on_open_timeout=rng.choice(get_args(OnOpenTimeout)) if rng.random() < 0.3 else "drop",
            missing_begin=rng.choice(get_args(MissingBegin)) if rng.random() < 0.3 else rng.choice(("drop", "accept")),
        )
        self.assembler, self.name = TransactionAssembler(self.policy), rng.choice(("p", 7))
        self.numbers = np.random.default_rng(rng.getrandbits(64))
        self.position = rng.choice((-(2**62), -5, 0, 10**12))
        self.serial = 0
        self.now = 0.0

    def run(self) -> None:
        for _ in range(self.rng.randrange(1, 40)):
            self.now += self.rng.choice((0.0, 0.1, 2.0, 100.0))
            if self.rng.random() < 0.1:
                self._step(None)
            else:
                self._step(self._events(self.rng.choice((0, 1, 2, 7, 40, 300, 3000))))
        serials = np.concatenate(self.released) if self.released else np.zeros(0, np.int64)
        _must(len(np.unique(serials)) == len(serials), "A row was released twice.")

    def _step(self, events: pa.Table | None) -> None:
        """A micro-batch, or a timer. After a typed error nothing has changed: Spark would give the batch up."""
        self.figures["events"] += events.num_rows if events is not None else 0
        try:
            step, released = self._assembled(events)
        except (InputError, OptionError) as error:
            _must(bool(error.message and error.advice), "An error says what to do.")
            self.figures["refused"] += events.num_rows if events is not None else 0
            self.figures[f"error {error.code}"] += 1
            return
        self._apply(step)
        data = int(np.isin(_upper(events), ("DATA", "TXN_DATA")).sum()) if events is not None else 0
        self._account(step.counters, data, events.num_rows if events is not None else 0, released)

    def _assembled(self, events: pa.Table | None) -> tuple[AssemblerStep, list[pa.Table]]:
        if events is None:
            step = self.assembler.expire({self.name: self.state}, self.now)
        else:
            batch, states = one_partition(self.name, events), {self.name: self.state}
            step = self.assembler.feed(batch, states, self.now, lambda _, n: from_blob(self.blobs[n]))
        return step, [release.rows for release in step.released]

    def _apply(self, step: AssemblerStep) -> None:
        self.held = sum(transaction.rows for transaction in self.state.live())
        change = step.changes.get(self.name, PartitionChange(self.state))
        for number in change.removed:
            del self.blobs[number]
        for number, rows in change.added.items():
            self.blobs[number] = to_blob(rows)
        self.state = AssemblerState.from_json(change.state.to_json())

    def _account(self, counts: Counters, data: int, events: int, released: list[pa.Table]) -> None:
        rows = sum(table.num_rows for table in released)
        held_rows = sum(transaction.rows for transaction in self.state.live())
        accounted = rows + counts.repeated_rows + counts.abandoned_rows + counts.dropped_rows + held_rows - self.held
        _must(counts.data == data and counts.events == events, "Not every event was counted.")
        _must(counts.rows == rows, "Released rows were miscounted.")
        _must(accounted == data, "A row is gone without a count.")
        _must(held_rows == sum(from_blob(blob).num_rows for blob in self.blobs.values()), "Held rows are gone.")
        for table in released:
            self.released.append(table["serial"].to_numpy())
        _whole(released)
        self.figures.update(
            data=data,
            released=rows,
            counted=counts.repeated_rows + counts.abandoned_rows + counts.dropped_rows,
            open=held_rows - self.held,
        )

    # --- events ---

    def _events(self, count: int) -> pa.Table:
        rng, numbers = self.rng, self.numbers
        weights = np.array(_WEIGHTS[rng.choice(list(_WEIGHTS))], dtype=float)
        kinds = numbers.choice(_KINDS, count, p=weights / weights.sum())
        positions = self.position + np.cumsum(numbers.integers(1, 4, count))
        self.position = int(positions[-1]) if count else self.position
        mixed = self.policy.interleaved or rng.random() < 0.05
        ids = numbers.integers(0, rng.choice((1, 2, 5, 50)) if mixed else 1, count).astype(str)
        serials = self.serial + np.arange(count)
        self.serial += count
        columns: dict[str, list[Any]] = {
            model.POSITION: positions.tolist(),
            model.TYPE: kinds.tolist(),
            model.TXN_ID: ids.tolist(),
            model.DATABASE: [None] * count,
            model.TABLE: ["t"] * count,
            model.OP: [None] * count,
            model.ROW: serials.astype(str).tolist(),
            "serial": serials.tolist(),
        }
        if count and rng.random() < 0.08:
            self._spoil(columns, count)
        return self._shuffled(pa.table(columns, schema=SCHEMA))

    def _spoil(self, columns: dict[str, list[Any]], count: int) -> None:
        """Break the contract in one place."""
        place = self.rng.randrange(count)
        column = self.rng.choice((model.POSITION, model.TYPE, model.TXN_ID, model.TABLE))
        columns[column][place] = None
        if self.rng.random() < 0.5:
            columns[model.POSITION][place] = self.rng.choice(columns[model.POSITION])
            columns[model.TYPE][place] = self.rng.choice(("DATA", "COMMIT", "", "\x00"))

    def _shuffled(self, events: pa.Table) -> pa.Table:
        """In another order, and some of them once more."""
        order = np.arange(events.num_rows)
        if events.num_rows and self.rng.random() < 0.4:
            again = self.numbers.integers(0, events.num_rows, self.rng.randrange(5))
            order = np.concatenate([order, again])
        if self.rng.random() < 0.5:
            self.numbers.shuffle(order)
        return events.take(pa.array(order))


def _whole(released: list[pa.Table]) -> None:
    """Each source transaction comes out in one piece: numbered from 0, its last row and no other marked as its end."""
    if not released:
        return
    table = pa.concat_tables(released)
    positions, seq = table[model.POSITION].to_numpy(), table[model.SEQ].to_numpy()
    ends = table[model.TRANSACTION_END].to_numpy(zero_copy_only=False)
    last = np.append(positions[1:] != positions[:-1], True)
    first = np.append(True, last[:-1])
    _must(bool((ends == last).all()), "A transaction's end is marked in another place.")
    _must(bool((seq[first] == 0).all() and (np.diff(seq)[~first[1:]] == 1).all()), "Rows are not numbered in order.")
    _must(bool((np.diff(positions) >= 0).all()), "Transactions came out in another order than that of their ends.")


def _upper(events: pa.Table) -> npt.NDArray[np.str_]:
    return np.char.upper(np.array([kind or "" for kind in events[model.TYPE].to_pylist()], dtype=str))


def _must(holds: bool, message: str) -> None:
    if not holds:
        raise AssertionError(message)
