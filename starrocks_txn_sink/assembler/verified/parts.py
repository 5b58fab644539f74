"""Which events of one transaction id belong together, where its transaction is settled: its *parts*.

A settled transaction comes again, whole or cut, or another source gives its id to another transaction. What is left of
the one, such as a second copy of a row or of an END, must not mix with the other: whole by itself each is judged,
together they would never add up. A connector sends one thing after the other, and Kafka's timestamps tell the order: a
part ends with its END, and all parts of what is settled end with the newest END that was settled: of all ids, as long
as nothing waits for a proof, and otherwise of each id by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from starrocks_txn_sink.assembler.rules import model
from starrocks_txn_sink.assembler.rules.history import NOWHERE
from starrocks_txn_sink.assembler.rules.intake import Indexes, Mask, one_array
from starrocks_txn_sink.assembler.verified import intake as v
from starrocks_txn_sink.assembler.verified.deliveries import integer_column
from starrocks_txn_sink.assembler.verified.repeats import Settled


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a step's transactions, numbered; an id that is not settled is one part.

    `code` has an entry per event, -1: of a snapshot. The others have one per part: its `id`, whether that is `known`,
    and whether the part came `later` than all that was settled.
    """

    ids: pa.StringArray
    code: Indexes
    known: Mask
    later: Mask


def parts(events: pa.Table, settled: Settled) -> Parts:
    """The parts of the transactions in `events` (intake.HELD_EVENTS)."""
    encoded = one_array(events[model.TXN_ID]).dictionary_encode()
    ids, code = encoded.dictionary, encoded.indices.fill_null(-1).to_numpy().astype(np.int64)
    known = settled.known(ids)
    times = integer_column(events, v.TIMESTAMP)
    at = np.flatnonzero(np.append(known, False)[code])
    later = np.zeros(len(ids), dtype=bool)
    if len(at):
        is_end = v.has_status(events, v.END)[at]
        upto = settled.upto(ids)[code[at]]
        part = _part_of(code[at], times[at], is_end, upto)
        # The first part of an id keeps its number, the others are numbered behind all ids.
        owners = code[at][np.unique(part, return_index=True)[1]]
        more = np.concatenate([[False], owners[1:] == owners[:-1]])
        numbers = np.where(more, len(ids) - 1 + np.cumsum(more), owners)
        code[at] = numbers[part]
        ids = pa.concat_arrays([ids, ids.take(pa.array(owners[more]))])
        known = np.append(known, np.ones(int(more.sum()), dtype=bool))
        later = np.zeros(len(ids), dtype=bool)
        later[code[at]] = (times[at] > upto) & (upto != NOWHERE)
    return Parts(ids, code, known, later)


def _part_of(code: Indexes, times: Indexes, is_end: Mask, upto: Indexes) -> Indexes:
    """The number of each event's part, ascending with `code` and time.

    A part ends with an END, and at the time `upto` of its id. What is younger than the last END goes with it: Kafka's
    brokers have different clocks, where these give the times.
    """
    order = np.lexsort((times, code))
    code, times, is_end, upto = code[order], times[order], is_end[order], upto[order]
    new_code = np.diff(code, prepend=-1) != 0
    new_time = new_code | (np.diff(times, prepend=0) != 0)
    last_end = np.full(int(code[-1]) + 1, NOWHERE)
    np.maximum.at(last_end, code[is_end], times[is_end])
    ends = np.cumsum(is_end & (times < last_end[code]))
    before = np.concatenate([[0], ends[:-1]])[np.maximum.accumulate(np.where(new_time, np.arange(len(code)), 0))]
    begins = new_code | (np.diff(before, prepend=0) != 0) | (np.diff(times > upto, prepend=False) != 0)
    part = np.empty(len(code), dtype=np.int64)
    part[order] = np.cumsum(begins) - 1
    return part
