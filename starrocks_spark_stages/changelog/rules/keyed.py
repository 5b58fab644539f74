"""The rules of one key over its state, and `state_ttl`: how long state outlives its last access, in processing time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Any, NamedTuple, Protocol

from starrocks_spark_stages.changelog.rules import conversions
from starrocks_spark_stages.changelog.rules.conversions import ImageEncoder, Kinds, RowChange, RowKind
from starrocks_txn_sink.clock import parse_duration
from starrocks_txn_sink.errors import OptionError

Duration = str | int | float | timedelta


@dataclass(frozen=True, slots=True)
class Retention:
    """State expires `seconds` after its last access; 0 keeps it forever."""

    seconds: float = 0.0

    @classmethod
    def of(cls, state_ttl: Duration | None) -> Retention:
        """Retention from "10 minutes", a timedelta or seconds; None and 0 mean forever. Raises OptionError."""
        seconds = 0.0 if state_ttl is None else parse_duration(state_ttl)
        if seconds is None or not 0 <= seconds < float("inf"):
            raise OptionError(
                f"state_ttl is {state_ttl!r}.",
                hint="Write it like '10 minutes', '36 h' or timedelta(hours=1), or as seconds; 0 keeps state forever.",
            )
        return cls(seconds)

    def has_expired(self, last_access: float, now: float) -> bool:
        """Whether state has expired at `now`, given the time of its last access (both in seconds)."""
        return self.seconds > 0 and now >= last_access + self.seconds


State = list[Any]


class InputChange(NamedTuple):
    """A change of the input: its kinds as text (`-U+U` for an update), row, before image; `extra` travels along."""

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
    `waiting`    growth of the number of -U that have no +U
    """

    output: list[OutputChange]
    state: State | None
    touched: bool = True
    swallowed: int = 0
    waiting: int = 0


class KeyRule(Protocol):
    """A rule over the changes of one key."""

    def step(self, state: State | None, changes: Sequence[InputChange]) -> KeyStep:
        """The changes that come out, and the state after them; `state` None: it is new, or has expired."""


@cache
def kinds_of(text: str) -> Kinds:
    """The kinds in a text such as `-U+U`: codes of two characters each."""
    return tuple(RowKind(text[index : index + 2]) for index in range(0, len(text), 2))


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
        """Decode each event by its kinds; `compact` leaves the net effect, with the extra columns of the last event."""
        previous = _previous(state)
        decoded: list[tuple[RowChange, str | None]] = []
        for entry in changes:
            kinds = kinds_of(entry.kinds)
            if self.keeps_rows:
                row_changes, previous = conversions.decode_with_previous(kinds, entry.row, entry.before, previous)
            else:
                row_changes = conversions.decode(kinds, entry.row if entry.before is None else entry.before, entry.row)
            decoded += [(change, entry.extra) for change in row_changes]
        if self.compact:
            net = conversions.net_effect([change for change, _ in decoded], full_deletes=self.full_deletes)
            decoded = [(change, decoded[-1][1]) for change in net]
        output = [OutputChange(change.kind, change.row, None, extra) for change, extra in decoded]
        return KeyStep(output, _as_state(previous), touched=self.keeps_rows)


@dataclass(frozen=True, slots=True)
class EncodeKey:
    """Row kinds → change events with images. The state has the key's row, and True if it is a -U that waits."""

    encoder: ImageEncoder

    def step(self, state: State | None, changes: Sequence[InputChange]) -> KeyStep:
        """Encode each change as an event, or as none: a paired -U waits for its +U."""
        previous, output = _previous(state), []
        waits, growth = state is not None and len(state) > 1, 0
        for change in changes:
            kind = RowKind(change.kinds)
            event, previous = self.encoder.encode(RowChange(kind, change.row), previous)
            if event is not None:
                output.append(OutputChange(event.code, event.after, event.before, change.extra))
            if kind is RowKind.UPDATE_BEFORE:
                waits = self.encoder.paired
                growth += waits
            elif kind is RowKind.UPDATE_AFTER or self.encoder.keyed:
                growth -= waits and kind is not RowKind.INSERT  # an INSERT in its place: it got none
                waits = False
        later = _as_state(previous)
        if later is not None and waits:
            later.append(True)
        return KeyStep(output, later, waiting=growth)


@dataclass(frozen=True, slots=True)
class NormalizeKey:
    """An upsert stream with deletes by key → true inserts and full deletes, under their codes."""

    codes: Mapping[RowKind, str] = field(default_factory=dict)

    def step(self, state: State | None, changes: Sequence[InputChange]) -> KeyStep:
        """Compare each change with the key's row; kinds without a code are left out."""
        previous, output = _previous(state), []
        with_before = RowKind.UPDATE_BEFORE in self.codes
        for entry in changes:
            change = RowChange(RowKind(entry.kinds), entry.row)
            row_changes, previous = conversions.normalize(change, previous, with_update_before=with_before)
            output += [
                OutputChange(self.codes[new.kind], new.row, None, entry.extra)
                for new in row_changes
                if new.kind in self.codes
            ]
        return KeyStep(output, _as_state(previous))


@dataclass(frozen=True, slots=True)
class MaterializeKey:
    """All changes of a sink key → the changes that the sink should see. The state has a ClaimingRow for each row."""

    def step(self, state: State | None, changes: Sequence[InputChange]) -> KeyStep:
        """Apply each change to the rows that claim the key; retractions without a row are swallowed and counted."""
        claiming = conversions.ClaimingRows(conversions.ClaimingRow(*fields) for fields in state or ())
        output, swallowed, touched = [], 0, False
        for change in changes:
            claim_result = claiming.apply(RowChange(RowKind(change.kinds), change.row), change.upsert_key)
            swallowed, touched = swallowed + claim_result.swallowed, touched or not claim_result.swallowed
            if claim_result.change is not None:
                output.append(OutputChange(claim_result.change.kind, claim_result.change.row, None, change.extra))
        rows = [list(fields) for fields in claiming.rows] or None
        return KeyStep(output, rows, touched=touched, swallowed=swallowed)
