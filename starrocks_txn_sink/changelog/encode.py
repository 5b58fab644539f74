"""From row kinds to change events with a before and an after image (4.2 in docs/changelog.md).

Flat events need no rule of their own: the code takes the place of the kind, and a kind without a code is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from starrocks_txn_sink.changelog.kinds import DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE, Change, Row, RowKind


class Event(NamedTuple):
    """A change event; None stands for an image that is not there."""

    code: str
    before: Row | None
    after: Row | None


class Encoded(NamedTuple):
    """What a change became (None: nothing yet, or nothing at all), and the key's previous row now."""

    event: Event | None
    previous: Row | None


def encode(codes: Mapping[RowKind, str], change: Change) -> Event | None:
    """The event of a change alone: -U and -D fill `before`, +I and +U fill `after`; None for a kind without a code."""
    code = codes.get(change.kind)
    if code is None:
        return None
    return Event(code, None, change.row) if change.kind.adds else Event(code, change.row, None)


@dataclass(frozen=True, slots=True)
class ImageEncoder:
    """Fills `before` from the key's previous row.

    `paired`: -U and +U leave as one event; the -U waits as the previous row until its +U comes, also over
    micro-batches. `keyed`: the changes are those of one key, so every added row is kept as the previous one, and input
    without -U gets its before images too. Changes of no particular key have nothing but a waiting -U.
    """

    codes: Mapping[RowKind, str]
    paired: bool
    keyed: bool = True

    def encode(self, change: Change, previous: Row | None) -> Encoded:
        """The event of a change, given the previous row of its key.

        An update whose previous row is unknown leaves as an INSERT, if INSERT has a code. A delete shows the previous
        row where it is known, which is a full one even if the change is a delete by key.
        """
        if change.kind is UPDATE_BEFORE:
            return Encoded(None if self.paired else encode(self.codes, change), change.row)
        if change.kind is UPDATE_AFTER:
            return Encoded(self._updated(change, previous), change.row if self.keyed else None)
        if not self.keyed:
            return Encoded(encode(self.codes, change), previous)
        if change.kind is INSERT or previous is None:
            return Encoded(encode(self.codes, change), change.row if change.kind is INSERT else None)
        return Encoded(encode(self.codes, Change(DELETE, previous)), None)

    def _updated(self, change: Change, previous: Row | None) -> Event | None:
        kind = INSERT if previous is None and INSERT in self.codes else UPDATE_AFTER
        code = self.codes.get(kind)
        return None if code is None else Event(code, previous, change.row)
