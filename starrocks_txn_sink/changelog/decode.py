"""From change events to row kinds, with and without the key's previous row.

Rows are opaque values; None means no row. Source: examples 4.1 and 4.3 in docs/changelog.md.
"""

from __future__ import annotations

from typing import NamedTuple

from starrocks_txn_sink.changelog.kinds import DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE, Row, RowChange
from starrocks_txn_sink.changelog.mapping import Kinds


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
