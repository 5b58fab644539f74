"""From row kinds to change events with a before and an after image (4.2 in docs/changelog.md).

Flat events need no rule here: the code replaces the kind, and a kind without a code is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from starrocks_txn_sink.changelog.kinds import DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE, Row, RowChange, RowKind


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
