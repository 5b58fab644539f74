"""From change events to row kinds, with and without the key's previous row.

Rows are opaque values; None means no row. Source: examples 4.1 and 4.3 in docs/changelog.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from starrocks_txn_sink.changelog.rules.kinds import (
    DELETE,
    INSERT,
    UPDATE_AFTER,
    UPDATE_BEFORE,
    Key,
    Kinds,
    Row,
    RowChange,
    RowKind,
)


class DecodeResult(NamedTuple):
    """Changes of one event, and the key's row after them."""

    changes: list[RowChange]
    previous: Row | None


def decode(kinds: Kinds, before: Row, after: Row) -> list[RowChange]:
    """Changes of an event with images: -U and -D take `before`, +I and +U take `after`.

    A flat event passes its row as both images.
    """
    return [RowChange(kind, after if kind.adds else before) for kind in kinds]


def decode_with_previous(kinds: Kinds, row: Row, before: Row | None, previous: Row | None) -> DecodeResult:
    """Changes of an event whose code may need the key's previous row.

    `row` is the after image, the row of a flat event, or the row to delete; `before` is the before image if the event
    has one. A code for several kinds is an INSERT while the key has no row, an update afterwards. A delete leaves with
    its own row, never completed from state.
    """
    if len(kinds) == 1:
        return _single(kinds, row, before, previous)
    before = previous if before is None else before
    if before is None:
        return DecodeResult([RowChange(INSERT, row)], row)
    retract = [RowChange(UPDATE_BEFORE, before)] if UPDATE_BEFORE in kinds else []
    return DecodeResult([*retract, RowChange(UPDATE_AFTER, row)], row)


def _single(kinds: Kinds, row: Row, before: Row | None, previous: Row | None) -> DecodeResult:
    (kind,) = kinds
    image = row if kind.adds or before is None else before
    if kind is DELETE:
        return DecodeResult([RowChange(kind, image)], None)
    return DecodeResult([RowChange(kind, image)], row if kind.adds else previous)


class ChangeEvent(NamedTuple):
    """A change event; a missing image is None."""

    code: str
    before: Row | None
    after: Row | None


class EncodeResult(NamedTuple):
    """Event of a change (None: none, or not before the next change), and the key's previous row for the next change."""

    event: ChangeEvent | None
    previous: Row | None


def encode(codes: Mapping[RowKind, str], change: RowChange) -> ChangeEvent | None:
    """Event of a single change: -U and -D fill `before`, +I and +U fill `after`; None for a kind without a code."""
    code = codes.get(change.kind)
    if code is None:
        return None
    return ChangeEvent(code, None, change.row) if change.kind.adds else ChangeEvent(code, change.row, None)


@dataclass(frozen=True, slots=True)
class ImageEncoder:
    """Fills `before` from the key's previous row.

    `paired`: -U and +U leave as one event; the -U waits as the previous row for its +U, even over micro-batches.
    `keyed`: all changes are of one key, so every added row becomes the previous row, and input without -U gets before
    images, too. Without a key only a waiting -U is kept.
    """

    codes: Mapping[RowKind, str]
    paired: bool
    keyed: bool = True

    def encode(self, change: RowChange, previous: Row | None) -> EncodeResult:
        """Event of a change, given the previous row of its key.

        An update without a known previous row leaves as an INSERT, if INSERT has a code. A delete shows the previous
        row where known: a whole row, even if the change is a delete by key.
        """
        if change.kind is UPDATE_BEFORE:
            return EncodeResult(None if self.paired else encode(self.codes, change), change.row)
        if change.kind is UPDATE_AFTER:
            return EncodeResult(self._encode_update(change, previous), change.row if self.keyed else None)
        if not self.keyed:
            return EncodeResult(encode(self.codes, change), previous)
        if change.kind is INSERT or previous is None:
            return EncodeResult(encode(self.codes, change), change.row if change.kind is INSERT else None)
        return EncodeResult(encode(self.codes, RowChange(DELETE, previous)), None)

    def _encode_update(self, change: RowChange, previous: Row | None) -> ChangeEvent | None:
        kind = INSERT if previous is None and INSERT in self.codes else UPDATE_AFTER
        code = self.codes.get(kind)
        return None if code is None else ChangeEvent(code, previous, change.row)


def net_effect(changes: Sequence[RowChange], *, full_deletes: bool) -> list[RowChange]:
    """The fewest changes with the same effect as `changes`, which are of one key and in order.

    The key had a row before unless the first change is +I. With `full_deletes` a delete's row is whole, and may become
    the before image of the update that replaces the delete. If the last change is a -U, its +U is still to come, and
    all changes are returned unchanged.
    """
    if not changes or changes[-1].kind is UPDATE_BEFORE:
        return list(changes)
    first, last = changes[0], changes[-1]
    if first.kind is INSERT:
        return [RowChange(INSERT, last.row)] if last.kind.adds else []
    retracted = first if not first.kind.adds else None
    if last.kind is DELETE:
        return [RowChange(DELETE, (retracted or last).row)]
    if retracted is not None and (retracted.kind is UPDATE_BEFORE or full_deletes):
        return [RowChange(UPDATE_BEFORE, retracted.row), RowChange(UPDATE_AFTER, last.row)]
    return [RowChange(UPDATE_AFTER, last.row)]


class NormalizeResult(NamedTuple):
    """Changes to put out, and the key's row after them."""

    changes: list[RowChange]
    previous: Row | None


def normalize(change: RowChange, previous: Row | None, *, with_update_before: bool = False) -> NormalizeResult:
    """Normalized form of one change, given its key's row (None: no row, or expired state).

    The first added row is +I; a later one is +U, after its -U if `with_update_before`. A delete carries the previous
    row. Dropped: a row equal to the previous one, a delete without a previous row, and every -U of the input, because
    the rule makes its own.
    """
    if change.kind is UPDATE_BEFORE:
        return NormalizeResult([], previous)
    if change.kind is DELETE:
        return NormalizeResult([] if previous is None else [RowChange(DELETE, previous)], None)
    if previous is None:
        return NormalizeResult([RowChange(INSERT, change.row)], change.row)
    if previous == change.row:
        return NormalizeResult([], previous)
    retract = [RowChange(UPDATE_BEFORE, previous)] if with_update_before else []
    return NormalizeResult([*retract, RowChange(UPDATE_AFTER, change.row)], change.row)


UPSERT: Final = "upsert"
REMOVE: Final = "delete"

# Of changes with the same sequence, the highest rank is the last.
RANKS: Final[dict[RowKind, int]] = {UPDATE_BEFORE: 0, DELETE: 1, INSERT: 2, UPDATE_AFTER: 2}


def final_changes(
    changes: Iterable[tuple[RowChange, Any]], key_of: Callable[[Row], Key]
) -> dict[Key, tuple[str, Row, Any]]:
    """Last operation of each key as (upsert or delete, row, sequence); `changes` are pairs (change, sequence)."""
    last: dict[Key, tuple[tuple[Any, int], RowChange]] = {}
    for change, sequence in changes:
        key, at = key_of(change.row), (sequence, RANKS[change.kind])
        if key not in last or at >= last[key][0]:
            last[key] = at, change
    return {key: (UPSERT if change.kind.adds else REMOVE, change.row, at[0]) for key, (at, change) in last.items()}


class TimedRow(NamedTuple):
    """A row and its event time; `place` breaks ties (any comparable values)."""

    time: int
    place: tuple[Any, ...]
    row: Any


class ReleaseResult(NamedTuple):
    """Released rows in order, rows still held, and the number of late rows, which are dropped."""

    rows: list[TimedRow]
    held: list[TimedRow]
    late: int


def release(held: Iterable[TimedRow], arrived: Iterable[TimedRow], watermark: int | None) -> ReleaseResult:
    """Release the rows at or below `watermark`; a row that arrives at or below it is late.

    `watermark` is in the unit of `TimedRow.time`. Before the first watermark it is None: no row is late or released.
    """
    new = list(arrived)
    if watermark is None:
        return ReleaseResult([], [*held, *new], 0)
    timely = [each for each in new if each.time > watermark]
    waiting = [*held, *timely]
    ready = sorted((each for each in waiting if each.time <= watermark), key=lambda each: each[:2])
    return ReleaseResult(ready, [each for each in waiting if each.time > watermark], len(new) - len(timely))


class ClaimingRow(NamedTuple):
    """A row that claims a sink key; compared by its upsert key, or as a whole if that is None."""

    key: Key | None
    row: Row

    def same_as(self, other: ClaimingRow) -> bool:
        return self.row == other.row if other.key is None else self.key == other.key


class MaterializeResult(NamedTuple):
    """Change for the sink (None: no change), the claiming rows after it, and whether a retraction found no row."""

    change: RowChange | None
    rows: tuple[ClaimingRow, ...]
    swallowed: bool = False


def materialize(change: RowChange, rows: tuple[ClaimingRow, ...], upsert_key: Key | None = None) -> MaterializeResult:
    """Apply one change to the rows of a sink key.

    An added row replaces the row with its upsert key in place, or is appended. A retraction removes the first row that
    is the same. If it was the last of the list, the new last row is shown; if it was the only one, the key is deleted
    with the retracting row. A retraction without a match is swallowed.
    """
    kept = ClaimingRow(upsert_key, change.row)
    position = next((at for at, each in enumerate(rows) if each.same_as(kept)), None)
    if change.kind.adds:
        return _add(change, rows, kept, position)
    if position is None:
        return MaterializeResult(None, rows, swallowed=True)
    remaining = rows[:position] + rows[position + 1 :]
    if not remaining:
        return MaterializeResult(RowChange(DELETE, change.row), remaining)
    if position == len(remaining):
        return MaterializeResult(RowChange(UPDATE_AFTER, remaining[-1].row), remaining)
    return MaterializeResult(None, remaining)


def _add(
    change: RowChange, rows: tuple[ClaimingRow, ...], kept: ClaimingRow, position: int | None
) -> MaterializeResult:
    shown = RowChange(UPDATE_AFTER if rows else INSERT, change.row)
    if kept.key is None or position is None:
        return MaterializeResult(shown, (*rows, kept))
    return MaterializeResult(shown, (*rows[:position], kept, *rows[position + 1 :]))


def needs_materializer(mode: str, sink_key: tuple[str, ...], upsert_key: tuple[str, ...] | None) -> bool:
    """Whether to materialize: `force` always, `none` never, `auto` unless the upsert key is the sink key.

    Without an upsert key nothing guarantees that the sink key is unique, or that its changes arrive in order.
    """
    if mode == "auto":
        return upsert_key is None or set(upsert_key) != set(sink_key)
    return mode == "force"
