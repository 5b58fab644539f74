"""The rules of one key as a state operator runs them: changes of a key in, changes out, and the state between.

Rows are text here (JSON made by the JVM), so state is text as well, and a row comes back exactly as it went in. A rule
is called with all changes of a key in a micro-batch, in order. State is a list of JSON values; None is no state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, Protocol

from starrocks_txn_sink.changelog.decode import decode, decode_with_previous
from starrocks_txn_sink.changelog.encode import ImageEncoder
from starrocks_txn_sink.changelog.kinds import Change, RowKind
from starrocks_txn_sink.changelog.mapping import Kinds
from starrocks_txn_sink.changelog.materialize import Kept, materialize
from starrocks_txn_sink.changelog.net_effect import net_effect
from starrocks_txn_sink.changelog.normalize import normalize

State = list[Any]


class Arrived(NamedTuple):
    """A change that came in: its kinds (`-U+U` for an update), its row, and what else there is about it."""

    kinds: str
    row: str | None
    before: str | None = None
    extra: str | None = None
    upsert_key: str | None = None


class Left(NamedTuple):
    """A change that goes out: a kind, or the code that a mapping gives it; `extra` is that of the change behind it."""

    kind: str
    row: str | None
    before: str | None = None
    extra: str | None = None


@dataclass(slots=True)
class KeyStep:
    """What a rule did with the changes of a key. `touched`: the state counts as accessed and is written."""

    left: list[Left]
    state: State | None
    touched: bool = True
    swallowed: int = 0


class KeyRule(Protocol):
    """A rule over the changes of one key."""

    def step(self, state: State | None, arrived: Sequence[Arrived]) -> KeyStep: ...


@cache
def kinds_of(text: str) -> Kinds:
    """The kinds in `-U+U`: codes of two characters each."""
    return tuple(RowKind(text[at : at + 2]) for at in range(0, len(text), 2))


def _previous(state: State | None) -> Any:
    return state[0] if state else None


def _as_state(previous: Any) -> State | None:
    return None if previous is None else [previous]


@dataclass(frozen=True, slots=True)
class DecodeKey:
    """Change events → row kinds. `keeps_rows`: the previous row is kept, for codes that need it."""

    keeps_rows: bool
    compact: bool = False
    full_deletes: bool = False

    def step(self, state: State | None, arrived: Sequence[Arrived]) -> KeyStep:
        previous = _previous(state)
        decoded: list[tuple[Change, str | None]] = []
        for each in arrived:
            kinds = kinds_of(each.kinds)
            if self.keeps_rows:
                changes, previous = decode_with_previous(kinds, each.row, each.before, previous)
            else:
                changes = decode(kinds, each.row if each.before is None else each.before, each.row)
            decoded += [(change, each.extra) for change in changes]
        if self.compact:
            net = net_effect([change for change, _ in decoded], full_deletes=self.full_deletes)
            decoded = [(change, decoded[-1][1]) for change in net]
        left = [Left(change.kind, change.row, None, extra) for change, extra in decoded]
        return KeyStep(left, _as_state(previous), touched=self.keeps_rows)


@dataclass(frozen=True, slots=True)
class EncodeKey:
    """Row kinds → change events with images."""

    encoder: ImageEncoder

    def step(self, state: State | None, arrived: Sequence[Arrived]) -> KeyStep:
        previous, left = _previous(state), []
        for each in arrived:
            event, previous = self.encoder.encode(Change(RowKind(each.kinds), each.row), previous)
            if event is not None:
                left.append(Left(event.code, event.after, event.before, each.extra))
        return KeyStep(left, _as_state(previous))


@dataclass(frozen=True, slots=True)
class NormalizeKey:
    """An upsert stream with deletes by key → true inserts and full deletes, under their codes."""

    codes: Mapping[RowKind, str] = field(default_factory=dict)

    def step(self, state: State | None, arrived: Sequence[Arrived]) -> KeyStep:
        previous, left = _previous(state), []
        with_before = RowKind.UPDATE_BEFORE in self.codes
        for each in arrived:
            change = Change(RowKind(each.kinds), each.row)
            changes, previous = normalize(change, previous, with_update_before=with_before)
            left += [
                Left(self.codes[done.kind], done.row, None, each.extra) for done in changes if done.kind in self.codes
            ]
        return KeyStep(left, _as_state(previous))


@dataclass(frozen=True, slots=True)
class MaterializeKey:
    """All changes that claim a sink key → those that the sink should see."""

    def step(self, state: State | None, arrived: Sequence[Arrived]) -> KeyStep:
        before = tuple(Kept(key, row) for key, row in state or ())
        rows, left, swallowed, written = before, [], 0, False
        for each in arrived:
            done = materialize(Change(RowKind(each.kinds), each.row), rows, each.upsert_key)
            rows, swallowed, written = done.rows, swallowed + done.swallowed, written or not done.swallowed
            if done.change is not None:
                left.append(Left(done.change.kind, done.change.row, None, each.extra))
        return KeyStep(left, [list(kept) for kept in rows] or None, touched=written, swallowed=swallowed)
