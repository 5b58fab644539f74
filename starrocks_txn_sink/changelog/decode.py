"""From change events to row kinds: what a record with a code becomes, with and without the previous row.

Rows are opaque values; None stands for "no row". The examples 4.1 and 4.3 of docs/changelog.md are the source.
"""

from __future__ import annotations

from typing import NamedTuple

from starrocks_txn_sink.changelog.kinds import DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE, Change, Row
from starrocks_txn_sink.changelog.mapping import Kinds


class Decoded(NamedTuple):
    """What a record became, and the row that its key has now."""

    changes: list[Change]
    previous: Row | None


def decode(kinds: Kinds, before: Row, after: Row) -> list[Change]:
    """The changes of a record that carries its images: -U and -D take `before`, +I and +U take `after`.

    A flat record is its own image on both sides.
    """
    return [Change(kind, after if kind.adds else before) for kind in kinds]


def decode_with_previous(kinds: Kinds, row: Row, before: Row | None, previous: Row | None) -> Decoded:
    """The changes of a record whose code may need the key's previous row.

    `row` is the after image, or the row itself when flat, or for a delete the row to delete; `before` is the before
    image if the record has one. A code for several kinds is an INSERT while the key has no row, an update afterwards.
    A delete is handed on as it came: it is never completed from state.
    """
    if len(kinds) == 1:
        return _single(kinds, row, before, previous)
    before = previous if before is None else before
    if before is None:
        return Decoded([Change(INSERT, row)], row)
    retract = [Change(UPDATE_BEFORE, before)] if UPDATE_BEFORE in kinds else []
    return Decoded([*retract, Change(UPDATE_AFTER, row)], row)


def _single(kinds: Kinds, row: Row, before: Row | None, previous: Row | None) -> Decoded:
    (kind,) = kinds
    image = row if kind.adds or before is None else before
    if kind is DELETE:
        return Decoded([Change(kind, image)], None)
    return Decoded([Change(kind, image)], row if kind.adds else previous)
