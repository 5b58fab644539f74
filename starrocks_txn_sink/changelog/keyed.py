"""The rules of one key as a state operator runs them: changes of a key in, changes out, state in between.

Rows are text here (JSON from the JVM), so state is text, too, and a row comes back exactly as it went in. A rule gets
all changes of a key in a micro-batch, in order. State is a list of JSON values; None is no state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, Protocol

from starrocks_txn_sink.changelog.decode import decode, decode_with_previous
from starrocks_txn_sink.changelog.encode import ImageEncoder
from starrocks_txn_sink.changelog.kinds import RowChange, RowKind
from starrocks_txn_sink.changelog.mapping import Kinds
from starrocks_txn_sink.changelog.materialize import ClaimingRow, materialize
from starrocks_txn_sink.changelog.net_effect import net_effect
from starrocks_txn_sink.changelog.normalize import normalize

State = list[Any]


class InputChange(NamedTuple):
    """A change of the input: its kinds as text (`-U+U` for an update), row, before image; `extra` travels beside it."""

    kinds: str
    row: str | None
    before: str | None = None
    extra: str | None = None
    upsert_key: str | None = None


class OutputChange(NamedTuple):
    """A change to put out: a row kind, or its code; `extra` is the one of the input change that caused it."""

    kind: str
    row: str | None
    before: str | None = None
    extra: str | None = None


@dataclass(slots=True)
class KeyStep:
    """Result of a rule for the changes of a key.

    `touched`    the state counts as accessed and is written, which renews its `state_ttl`
    `swallowed`  retractions that found no row
    """

    output: list[OutputChange]
    state: State | None
    touched: bool = True
    swallowed: int = 0


class KeyRule(Protocol):
    """A rule over the changes of one key."""

    def step(self, state: State | None, changes: Sequence[InputChange]) -> KeyStep: ...


@cache
def kinds_of(text: str) -> Kinds:
    """The kinds in a text such as `-U+U`: codes of two characters each."""
    return tuple(RowKind(text[at : at + 2]) for at in range(0, len(text), 2))


def _previous(state: State | None) -> Any:
    return state[0] if state else None


def _as_state(previous: Any) -> State | None:
    return None if previous is None else [previous]


@dataclass(frozen=True, slots=True)
class DecodeKey:
    """Change events → row kinds. `keeps_rows`: keep the previous row, for codes that need it."""

    keeps_rows: bool
    compact: bool = False
    full_deletes: bool = False

    def step(self, state: State | None, changes: Sequence[InputChange]) -> KeyStep:
        previous = _previous(state)
        decoded: list[tuple[RowChange, str | None]] = []
        for each in changes:
            kinds = kinds_of(each.kinds)
            if self.keeps_rows:
                row_changes, previous = decode_with_previous(kinds, each.row, each.before, previous)
            else:
                row_changes = decode(kinds, each.row if each.before is None else each.before, each.row)
            decoded += [(change, each.extra) for change in row_changes]
        if self.compact:
            net = net_effect([change for change, _ in decoded], full_deletes=self.full_deletes)
            decoded = [(change, decoded[-1][1]) for change in net]
        output = [OutputChange(change.kind, change.row, None, extra) for change, extra in decoded]
        return KeyStep(output, _as_state(previous), touched=self.keeps_rows)


@dataclass(frozen=True, slots=True)
class EncodeKey:
    """Row kinds → change events with images."""

    encoder: ImageEncoder

    def step(self, state: State | None, changes: Sequence[InputChange]) -> KeyStep:
        previous, output = _previous(state), []
        for each in changes:
            event, previous = self.encoder.encode(RowChange(RowKind(each.kinds), each.row), previous)
            if event is not None:
                output.append(OutputChange(event.code, event.after, event.before, each.extra))
        return KeyStep(output, _as_state(previous))


@dataclass(frozen=True, slots=True)
class NormalizeKey:
    """An upsert stream with deletes by key → true inserts and full deletes, under their codes."""

    codes: Mapping[RowKind, str] = field(default_factory=dict)

    def step(self, state: State | None, changes: Sequence[InputChange]) -> KeyStep:
        previous, output = _previous(state), []
        with_before = RowKind.UPDATE_BEFORE in self.codes
        for each in changes:
            change = RowChange(RowKind(each.kinds), each.row)
            row_changes, previous = normalize(change, previous, with_update_before=with_before)
            output += [
                OutputChange(self.codes[new.kind], new.row, None, each.extra)
                for new in row_changes
                if new.kind in self.codes
            ]
        return KeyStep(output, _as_state(previous))


@dataclass(frozen=True, slots=True)
class MaterializeKey:
    """All changes of a sink key → the changes that the sink should see."""

    def step(self, state: State | None, changes: Sequence[InputChange]) -> KeyStep:
        before = tuple(ClaimingRow(key, row) for key, row in state or ())
        rows, output, swallowed, touched = before, [], 0, False
        for each in changes:
            done = materialize(RowChange(RowKind(each.kinds), each.row), rows, each.upsert_key)
            rows, swallowed, touched = done.rows, swallowed + done.swallowed, touched or not done.swallowed
            if done.change is not None:
                output.append(OutputChange(done.change.kind, done.change.row, None, each.extra))
        return KeyStep(output, [list(kept) for kept in rows] or None, touched=touched, swallowed=swallowed)
