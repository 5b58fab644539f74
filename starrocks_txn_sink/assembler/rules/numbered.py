"""Source transactions whose rows are numbered, without BEGIN and END: Maxwell's `xoffset` and `commit`.

The rows of a transaction come one after the other in one source partition, numbered from 0, and the last one has the
commit's mark instead of its number. So the numbers say of each row whether a transaction begins with it, and that no
row in front of it is missing, but for those right in front of the last. `with_marks` puts BEGIN and END where they
belong; TransactionAssembler does the rest.

A source that starts again sends a transaction from its beginning: what came of it before is given up, as behind any
BEGIN. A row number that does not follow is an error, because a row is missing or the rows are scattered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from starrocks_txn_sink.assembler.rules import model
from starrocks_txn_sink.assembler.rules.intake import Indexes, Intake, Mask, one_array, starts
from starrocks_txn_sink.assembler.rules.model import AssemblerState, EventKind, Partition
from starrocks_txn_sink.errors import SourceTransactionError

_NONE: Final = -1
_TOGETHER: Final = (
    "All rows of a transaction must come through one partition, in order: no topic for each table, no compaction, no "
    'filter behind the numbers, no asynchronous bootstrap, an idempotent producer. Otherwise set transactions="none".'
)


class Marked(NamedTuple):
    """Rows with BEGIN and END: the row of each event, the event's kind, and the source partitions' exclusive ends.

    The row of a mark is that of the transaction's first or last row.
    """

    rows: Indexes
    kinds: npt.NDArray[np.int8]
    ends: Indexes


def with_marks(intake: Intake, states: Mapping[Partition, AssemblerState], *, in_front: bool) -> Marked:
    """The rows that a table takes, with BEGIN in front of each transaction, and END behind a commit.

    Raises SourceTransactionError for the first number that does not follow the one before in its transaction; with
    `in_front` also for one with which a transaction would begin, but 0.
    """
    first = intake.messages
    last = np.append(first[1:], len(intake.kinds))[: len(first)] - 1
    number: Indexes = pc.fill_null(intake.table[model.NUMBER], _NONE).to_numpy()[first]
    commit: Mask = intake.table[model.COMMIT].to_numpy()[first]
    behind_open, goes_on, before = _front(intake, states, number, commit)
    follows = behind_open & goes_on & (number == before + 1)
    wrong = (number > 0) & ~follows & (behind_open | in_front)
    if wrong.any():
        at = int(wrong.argmax())
        raise _gap(intake, int(first[at]), int(number[at]), behind_open=bool(behind_open[at]))
    begins = first[(number == 0) | ((number == _NONE) & ~goes_on)]
    data, ends = np.flatnonzero(intake.kinds == EventKind.DATA), last[commit]
    rows = np.concatenate([begins, data, ends])
    kinds = np.repeat(np.array(_KINDS, dtype=np.int8), [len(begins), len(data), len(ends)])
    order = np.argsort(rows, kind="stable")
    rows = rows[order]
    return Marked(rows, kinds[order], np.searchsorted(rows, intake.ends))


_KINDS: Final = (EventKind.BEGIN, EventKind.DATA, EventKind.END)


def last_numbers(intake: Intake) -> list[int | None]:
    """The number of each source partition's last row, of numbered ones; None: it has none, or no row."""
    numbers = intake.table[model.NUMBER]
    ends = zip(intake.ends.tolist(), intake.counts.tolist(), strict=True)
    return [numbers[end - 1].as_py() if count else None for end, count in ends]


def _front(
    intake: Intake, states: Mapping[Partition, AssemblerState], number: Indexes, commit: Mask
) -> tuple[Mask, Mask, Indexes]:
    """Of each message: whether the one in front has not ended its transaction, is of the same one, and its number.

    In front of a source partition's first message is what is open there.
    """
    first = intake.messages
    ids = one_array(intake.table[model.TXN_ID])
    codes = ids.dictionary_encode().indices.fill_null(_NONE).to_numpy(zero_copy_only=False)[first]
    behind_open, before = np.zeros(len(first), dtype=bool), np.full(len(first), _NONE, dtype=np.int64)
    goes_on = np.zeros(len(first), dtype=bool)
    behind_open[1:], before[1:] = ~commit[:-1], number[:-1]
    goes_on[1:] = behind_open[1:] & (codes[1:] == codes[:-1])
    ends = np.searchsorted(first, intake.ends)
    for name, start, end in zip(intake.names, starts(ends).tolist(), ends.tolist(), strict=True):
        if start == end:
            continue
        opened = states[name].open if name in states else ()
        behind_open[start] = bool(opened)
        goes_on[start] = bool(opened) and opened[-1].txn_id == ids[first[start]].as_py()
        before[start] = opened[-1].number if opened and opened[-1].number is not None else _NONE
    return behind_open, goes_on, before


def _gap(intake: Intake, row: int, number: int, *, behind_open: bool) -> SourceTransactionError:
    message, hint = (
        f"Row {number} of a source transaction does not follow the row in front of it: rows are missing, or not in "
        "the order of the source.",
        _TOGETHER,
    )
    if not behind_open:
        message = f"The rows of a source transaction in front of row {number} were never read, or not together."
        hint = f'Where the topic begins in the middle of a transaction, pass missing_begin="drop". {_TOGETHER}'
    return SourceTransactionError(
        message,
        hint=hint,
        partition=intake.names[int(np.searchsorted(intake.ends, row, side="right"))],
        position=int(intake.positions[row]),
        txn_id=intake.table[model.TXN_ID][row].as_py(),
    )
