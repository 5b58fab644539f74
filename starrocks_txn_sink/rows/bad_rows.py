"""Rows that the sink itself judges to be bad, before they are sent: the server would reject them, or worse.

A judge looks at a batch and says which rows are bad, and why. Without a quarantine the first one ends the write. With
one its source transaction becomes dead letters at once, without a search (`writer.dead_letters`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from starrocks_txn_sink.errors import RowsRejected
from starrocks_txn_sink.rows.columns import TABLE
from starrocks_txn_sink.rows.places import PLACE_AND_TABLE, place_of


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row by its number in the batch; `reason` follows the words "A row ", and never has a value of the row."""

    number: int
    reason: str


Judge = Callable[[pa.RecordBatch], Sequence[BadRow]]
"""The bad rows of a batch, each once, in their order. The batch has the columns TABLE and PAYLOAD, and those of a place
and DELETED where rows have them."""


def refused(batch: pa.RecordBatch, bad_rows: Sequence[BadRow]) -> RowsRejected:
    """The error for the bad rows of a batch, with the place of the first one."""
    first = bad_rows[0]
    rest = f", and so are {len(bad_rows) - 1} more of its batch" if len(bad_rows) > 1 else ""
    return RowsRejected(
        f"A row {first.reason}{place_of(batch, first.number, names=PLACE_AND_TABLE)}{rest}; nothing of it was sent.",
        hint="Correct the source, or set on_bad_rows='quarantine', with which such source transactions become dead "
        "letters.",
        table=batch.column(TABLE)[first.number].as_py(),
    )
