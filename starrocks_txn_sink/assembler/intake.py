"""Events of one source partition made ready for the rules: checked, ordered by position, without repeats."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.assembler import schema
from starrocks_txn_sink.errors import InputError

Indexes = npt.NDArray[np.int64]


class Kind(IntEnum):
    """What an event is."""

    DATA = 0
    BEGIN = 1
    END = 2


_SPELLINGS: Final = {
    "DATA": Kind.DATA,
    "BEGIN": Kind.BEGIN,
    "END": Kind.END,
    "TXN_BEGIN": Kind.BEGIN,
    "TXN_END": Kind.END,
    "TXN_DATA": Kind.DATA,
}
_NAMES: Final = pa.array(list(_SPELLINGS))
_KINDS: Final = np.array(list(_SPELLINGS.values()), dtype=np.int8)
KIND: Final = "_kind"
_IDENTITY: Final = (schema.TYPE, schema.TXN_ID, *schema.PAYLOAD)


@dataclass(frozen=True, slots=True)
class Intake:
    """New events of a source partition, positions strictly ascending, and what was dropped as repeated."""

    table: pa.Table
    kinds: npt.NDArray[np.int8]
    positions: Indexes
    repeats: int
    repeated_rows: int


def take_in(events: pa.Table, last_position: int | None, partition: object, *, need_txn_id: bool) -> Intake:
    """Check `events`, sort them by position, drop those at or below `last_position` or seen twice.

    Raises InputError naming the place (partition, position, column), never the content, for a NULL position, type,
    table (of DATA) or, with `need_txn_id`, txn_id, for an unknown type, and for two different events at one position.
    """
    if KIND in events.schema.names:
        kinds, events = events[KIND].to_numpy(), events.drop_columns([KIND])
    else:
        kinds = _checked(events, partition, need_txn_id=need_txn_id)
    positions = events[schema.POSITION].to_numpy()
    if not _ascending(positions):
        order = np.argsort(positions, kind="stable")
        events, kinds, positions = events.take(pa.array(order)), kinds[order], positions[order]
    fresh = np.ones(len(positions), dtype=bool)
    fresh[1:] = positions[1:] != positions[:-1]
    if not fresh.all():
        _same_content(events, positions, np.flatnonzero(~fresh), partition)
    if last_position is not None:
        fresh &= positions > last_position
    if fresh.all():
        return Intake(events, kinds, positions, 0, 0)
    repeated = kinds[~fresh]
    rows = int(np.count_nonzero(repeated == Kind.DATA))
    return Intake(events.filter(pa.array(fresh)), kinds[fresh], positions[fresh], len(repeated), rows)


def looked_through(events: pa.Table, *, need_txn_id: bool) -> pa.Table:
    """`events` of many source partitions with what `take_in` would find out for each of them, a column KIND.

    Without it when one of them breaks the contract: `take_in` will then name the place.
    """
    found = pc.index_in(pc.utf8_upper(events[schema.TYPE]), value_set=_NAMES)
    wanted = [schema.POSITION, *([schema.TXN_ID] if need_txn_id else [])]
    if found.null_count or any(events[column].null_count for column in wanted):
        return events
    kinds = _KINDS[found.to_numpy()]
    table = events[schema.TABLE]
    if table.null_count and (table.is_null().to_numpy() & (kinds == Kind.DATA)).any():
        return events
    return events.append_column(KIND, pa.array(kinds))


def _ascending(positions: Indexes) -> bool:
    return bool((positions[1:] >= positions[:-1]).all())


def _checked(events: pa.Table, partition: object, *, need_txn_id: bool) -> npt.NDArray[np.int8]:
    """The kind of each event, once the columns that must not be NULL have been looked at."""
    _no_nulls(events, schema.POSITION, None, partition)
    _no_nulls(events, schema.TYPE, None, partition)
    found = pc.index_in(pc.utf8_upper(events[schema.TYPE]), value_set=_NAMES)
    if found.null_count:
        first = pc.index(found.is_null(), True).as_py()
        raise _at(events, first, partition, schema.TYPE, "An event has an unknown type.", "Use BEGIN, DATA or END.")
    kinds: npt.NDArray[np.int8] = _KINDS[found.to_numpy()]
    _no_nulls(events, schema.TABLE, kinds == Kind.DATA, partition)
    if need_txn_id:
        _no_nulls(events, schema.TXN_ID, None, partition)
    return kinds


def _no_nulls(events: pa.Table, column: str, among: npt.NDArray[np.bool_] | None, partition: object) -> None:
    values = events[column]
    if not values.null_count:
        return
    null = values.is_null().to_numpy()
    if among is not None:
        null = null & among
    if null.any():
        hint = "Correct the source, or filter such events out before they are assembled."
        raise _at(events, int(null.argmax()), partition, column, f"An event has no {column} (NULL).", hint)


def _same_content(events: pa.Table, positions: Indexes, again: Indexes, partition: object) -> None:
    """Refuse two events at one position that differ: dropping one as a repeat would lose a row without a word."""
    before, after = events.take(pa.array(again - 1)), events.take(pa.array(again))
    for column in _IDENTITY:
        ours, theirs = before[column], after[column]
        same = pc.or_(pc.fill_null(pc.equal(ours, theirs), False), pc.and_(ours.is_null(), theirs.is_null()))
        if not pc.all(same, min_count=0).as_py():
            place = again[int(pc.index(same, False).as_py())]
            raise InputError(
                "Two different events have the same position.",
                hint="Give every event its own, ascending position (in Kafka: the offset).",
                partition=partition,
                position=int(positions[place]),
                column=column,
            )


def refuse_other_content(before: pa.Table, event: pa.Table, partition: object) -> None:
    """Raise InputError unless `event`, at the same position as `before`, is the same event; one row each."""
    both = pa.concat_tables([one.select([schema.POSITION, *_IDENTITY]) for one in (before, event)])
    _same_content(both, both[schema.POSITION].to_numpy(), np.array([1]), partition)


def _at(events: pa.Table, index: int, partition: object, column: str, message: str, hint: str) -> InputError:
    position: Any = events[schema.POSITION][index].as_py()
    if position is None:
        position = "NULL"
    return InputError(message, hint=hint, partition=partition, position=position, column=column)
