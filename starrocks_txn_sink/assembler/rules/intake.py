"""Intake: groups new events by source partition, validates them, puts them in order, and drops repeats.

The order is that of (position, seq). Where the source numbers the rows of a message, the events with one position are
these rows, and `seq` counts them from 0: they come together, as they stand. Everywhere else there is no `seq`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.assembler.rules import history, model, repeats
from starrocks_txn_sink.assembler.rules.history import AnyOrder, Kind, Run
from starrocks_txn_sink.assembler.rules.model import AssemblerState, EventKind, Partition
from starrocks_txn_sink.assembler.rules.repeats import Repeats
from starrocks_txn_sink.errors import InputError, Unordered
from starrocks_txn_sink.rows.metadata import without_time
from starrocks_txn_sink.rows.segments import all_equal

Indexes = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Runs = Mapping[Partition, Run | None]

_SPELLINGS: Final = {
    "DATA": EventKind.DATA,
    "BEGIN": EventKind.BEGIN,
    "END": EventKind.END,
    "TXN_BEGIN": EventKind.BEGIN,
    "TXN_END": EventKind.END,
    "TXN_DATA": EventKind.DATA,
}
_KINDS: Final = np.array(list(_SPELLINGS.values()), dtype=np.int8)
_FILTER_HINT: Final = "Correct the source, or filter such events out before they are assembled."


@cache
def value_set(*texts: str) -> pa.Array:
    """`texts` to look up; made on first use, because Arrow imports pandas for its first array, 0.3 s of processor time.

    A data source's processes on the driver need no array.
    """
    return pa.array(texts)


@dataclass(frozen=True, slots=True)
class PartitionedEvents:
    """Events grouped by source partition.

    `ends[p]` is the exclusive end of source partition `names[p]`, which may be empty only if it is the single one. The
    event at place i is row `order[i]` of `table` (`order` None: row i). `table` has no source partition column.
    """

    names: list[Partition]
    ends: Indexes
    table: pa.Table
    order: Indexes | None = None

    @property
    def groups(self) -> Indexes:
        """The source partition of each event, as an index into `names`."""
        return np.repeat(np.arange(len(self.names)), self.ends - self.starts)

    @property
    def starts(self) -> Indexes:
        """The first place of each source partition's events, parallel to `names`."""
        return starts(self.ends)

    def positions(self) -> Indexes:
        """The position of each event; NULL is not allowed."""
        positions: Indexes = self.table[model.POSITION].to_numpy()
        return positions if self.order is None else positions[self.order]

    def seq(self) -> Indexes | None:
        """The place of each event in its message; None: each event is a message."""
        if model.SEQ not in self.table.column_names:
            return None
        seq: Indexes = self.table[model.SEQ].to_numpy()
        if not seq.any():
            return None
        return seq if self.order is None else seq[self.order]

    def name_at(self, place: int) -> Partition:
        """The source partition of the event at `place`."""
        return self.names[int(np.searchsorted(self.ends, place, side="right"))]

    def by_partition(self) -> Iterator[PartitionedEvents]:
        """Yield each source partition's events."""
        table = self.table if self.order is None else self.table.take(pa.array(self.order))
        for name, start, end in zip(self.names, self.starts.tolist(), self.ends.tolist(), strict=True):
            yield one_partition(name, table.slice(start, end - start))


def one_partition(name: Partition, events: pa.Table) -> PartitionedEvents:
    """Events (model.EVENT_FIELDS) of one source partition."""
    return PartitionedEvents([name], np.array([events.num_rows]), events)


def messages_of(events: PartitionedEvents) -> PartitionedEvents:
    """The first event of each message."""
    seq = events.seq()
    if seq is None:
        return events
    first = np.flatnonzero(seq == 0)
    order = first if events.order is None else events.order[first]
    return replace(events, ends=np.searchsorted(first, events.ends), order=order)


def group_by_partition(table: pa.Table, *, sort_names: bool = False) -> PartitionedEvents:
    """Group `table` by source partition: in order of first appearance, or by name with `sort_names`.

    Events keep their order within a source partition. Raises InputError for a NULL source partition.
    """
    partitions = one_array(table[model.SOURCE_PARTITION])
    if partitions.null_count:
        at = pc.index(partitions.is_null(), True).as_py()
        raise InputError(
            "An event has no source partition (NULL).",
            hint=_FILTER_HINT,
            partition="NULL",
            position=table[model.POSITION][at].as_py(),
            column=model.SOURCE_PARTITION,
        )
    if all_equal(partitions):
        return one_partition(partitions[0].as_py(), table.drop_columns([model.SOURCE_PARTITION]))
    encoded = partitions.dictionary_encode()
    names, codes = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
    if sort_names and len(names) > 1:
        ranks = np.argsort(np.array(names, dtype=object))
        names, codes = [names[rank] for rank in ranks], np.argsort(ranks)[codes]
    order = np.argsort(codes, kind="stable") if (codes[1:] < codes[:-1]).any() else None
    ends = np.cumsum(np.bincount(codes, minlength=len(names)))
    return PartitionedEvents(names, ends, table.drop_columns([model.SOURCE_PARTITION]), order)


@dataclass(frozen=True, slots=True)
class Intake:
    """New events by source partition (see PartitionedEvents), (position, seq) strictly ascending within each.

    A source partition with repeats only is empty. `data` counts the DATA events that came in, repeats included;
    `repeats` has the messages at or below the last position of their source partition, `runs` what goes on of them and
    of those before. `seq` None: each event is a message.
    """

    names: list[Partition]
    ends: Indexes
    table: pa.Table
    kinds: npt.NDArray[np.int8]
    positions: Indexes
    seq: Indexes | None = None
    data: int = 0
    repeats: tuple[Repeats, ...] = ()
    runs: Runs = field(default_factory=dict)

    @property
    def counts(self) -> Indexes:
        """Number of events of each source partition."""
        return self.ends - starts(self.ends)

    @property
    def messages(self) -> Indexes:
        """The place of each message's first event."""
        return np.arange(len(self.kinds)) if self.seq is None else np.flatnonzero(self.seq == 0)


def validate_events(
    events: PartitionedEvents,
    states: Mapping[Partition, AssemblerState],
    *,
    need_txn_id: bool,
    compare: bool = True,
    runs_before: Runs | None = None,
) -> Intake:
    """Validate `events`, put them in order, and drop repeats: events seen twice or at or below `last_position`.

    Those of a source partition are in the order in which they came. Otherwise nobody knows it any more, and there are
    `runs_before`: of repeats that came before this micro-batch, and that nothing of it has proved yet.

    Raises InputError naming the place (partition, position, column), never the content, for a NULL position, type,
    table (of DATA) or, with `need_txn_id`, txn_id, for an unknown type, and for two different events at one place.
    With `compare` raises SourceChanged for repeats that prove another source (`rules.repeats`).
    """
    if not events.table.num_rows:
        return Intake(events.names, events.ends, events.table, np.zeros(0, np.int8), np.zeros(0, np.int64))
    kinds = _validated_kinds(events, need_txn_id=need_txn_id)
    positions, seq, order = events.positions(), events.seq(), events.order
    repeated = not_ascending(positions, events.ends, seq)
    again = np.flatnonzero(repeated)
    if any((places[again] < places[again - 1]).any() for places in (positions, seq) if places is not None):
        by_place = _by_place(events, positions, seq)
        positions, seq = positions[by_place], None if seq is None else seq[by_place]
        order = by_place if order is None else order[by_place]
        repeated = not_ascending(positions, events.ends, seq)
    table = events.table
    if order is not None:
        table, kinds = table.take(pa.array(order)), kinds[order]
    if repeated.any():
        _refuse_other_content(events, table, positions, np.flatnonzero(repeated), _identity(table))
    last_positions = [states[name].last_position if name in states else None for name in events.names]
    seen_mask = _seen_before(events, positions, last_positions)
    arrival = np.arange(len(positions)) if order is None else order
    of_events = positions, seq, kinds, table, arrival
    seen_before, runs = _judge_repeats(events, states, seen_mask, *of_events, runs_before, compare=compare)
    repeated |= seen_mask
    data = int(np.count_nonzero(kinds == EventKind.DATA))
    if not repeated.any():
        return Intake(events.names, events.ends, table, kinds, positions, seq, data, runs=runs)
    fresh = ~repeated
    ends = np.cumsum(np.bincount(events.groups[fresh], minlength=len(events.names)))
    table, seq = table.filter(pa.array(fresh)), None if seq is None else seq[fresh]
    return Intake(events.names, ends, table, kinds[fresh], positions[fresh], seq, data, seen_before, runs)


def starts(ends: Indexes) -> Indexes:
    """Starts of adjacent ranges with the exclusive ends `ends`."""
    starts = np.zeros_like(ends)
    starts[1:] = ends[:-1]
    return starts


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """The column as one array, without a copy for a single chunk (combine_chunks would copy it)."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def same_values(ours: pa.ChunkedArray, theirs: pa.ChunkedArray) -> pa.ChunkedArray:
    """Whether each pair of values is equal; NULL equals NULL."""
    return pc.or_(pc.fill_null(pc.equal(ours, theirs), False), pc.and_(ours.is_null(), theirs.is_null()))


def not_ascending(positions: Indexes, ends: Indexes, seq: Indexes | None = None) -> Mask:
    """Mask of events whose place is not above the previous one in the same source partition."""
    marks = np.zeros(len(positions), dtype=bool)
    np.less_equal(positions[1:], positions[:-1], out=marks[1:])
    if seq is not None:
        marks[1:] &= (positions[1:] < positions[:-1]) | (seq[1:] <= seq[:-1])
    marks[ends[:-1]] = False  # the first event of the next source partition
    return marks


def not_above(events: PartitionedEvents, positions: Indexes, latest: Sequence[int | None]) -> Mask:
    """`not_ascending` of messages, where the first one of source partition i follows `latest[i]` (None: nothing)."""
    marks = not_ascending(positions, events.ends)
    for start, last in zip(events.starts.tolist(), latest, strict=True):
        marks[start] = last is not None and positions[start] <= last
    return marks


def refuse_disorder(events: PartitionedEvents, positions: Indexes, latest: Sequence[int | None]) -> None:
    """Raise Unordered for the first message that is `not_above` the one before."""
    back = not_above(events, positions, latest)
    if back.any():
        at = int(back.argmax())
        group = int(np.searchsorted(events.ends, at, side="right"))
        before = latest[group] if at == events.starts[group] else positions[at - 1]
        raise Unordered(
            f"The events of source partition {events.names[group]} do not arrive in the order of their positions: "
            f"{positions[at]} came after {before}. Nothing was committed.",
            hint='Set shuffle="auto" or true, so that they are sorted first.',
        )


def sorted_by_position(events: PartitionedEvents) -> PartitionedEvents:
    """The events, sorted by position within each source partition; the rows of a message stay as they stand."""
    positions = events.positions()
    if not not_ascending(positions, events.ends).any():
        return events
    order = _by_place(events, positions)
    return replace(events, order=order if events.order is None else events.order[order])


def _by_place(events: PartitionedEvents, positions: Indexes, seq: Indexes | None = None) -> Indexes:
    keys = [positions] if seq is None else [seq, positions]
    if len(events.names) > 1:
        keys.append(events.groups)
    return np.argsort(positions, kind="stable") if len(keys) == 1 else np.lexsort(keys)


def _seen_before(events: PartitionedEvents, positions: Indexes, last_positions: list[int | None]) -> Mask | bool:
    """Mask of events that are not new, at or below the last position; False if there are none."""
    firsts = positions[events.starts].tolist()
    again = [last is not None and first <= last for first, last in zip(firsts, last_positions, strict=True)]
    if not any(again):
        return False
    limits = np.array([history.NOWHERE if last is None else last for last in last_positions], dtype=np.int64)
    mask: Mask = history.kinds(positions > limits[events.groups]) == Kind.AGAIN
    return mask


def _judge_repeats(
    events: PartitionedEvents,
    states: Mapping[Partition, AssemblerState],
    seen_mask: Mask | bool,
    positions: Indexes,
    seq: Indexes | None,
    kinds: npt.NDArray[np.int8],
    table: pa.Table,
    arrival: Indexes,
    runs_before: Runs | None,
    *,
    compare: bool,
) -> tuple[tuple[Repeats, ...], Runs]:
    """The repeats `seen_mask` of each source partition, messages by their first events, judged if `compare`.

    A run of repeats that new events end is judged, too. The runs are those that go on.
    """
    known, before = (states, runs_before or {}) if compare else ({}, {})
    open_runs = {name for name in known if (known[name].run or before.get(name)) is not None}
    if isinstance(seen_mask, bool) and not open_runs:
        return (), {}
    judgements, runs = list[Repeats](), dict[Partition, Run | None]()
    for name, start, end in zip(events.names, events.starts.tolist(), events.ends.tolist(), strict=True):
        seen = np.empty(0, np.int64) if isinstance(seen_mask, bool) else np.flatnonzero(seen_mask[start:end]) + start
        places = seen if seq is None else seen[seq[seen] == 0]
        if not len(places) and (name not in open_runs or start == end):
            continue
        if runs_before is None:
            places = places[np.argsort(arrival[places])]
        of_repeats = positions[places], kinds[places], table.take(pa.array(places))
        if compare:
            state, new = states[name], np.setdiff1d(np.arange(start, end), seen, assume_unique=True)
            among: Indexes | AnyOrder = (
                history.ends(arrival[places], arrival[new])
                if runs_before is None
                else AnyOrder(len(new) > 0, runs_before[name])
            )
            judgement = repeats.judge(name, state.history, state.run, *of_repeats, new=among)
        else:
            judgement = repeats.unjudged(name, *of_repeats[:2])
        runs[name] = judgement.run
        if len(places):
            judgements.append(judgement)
    return tuple(judgements), runs


def _validated_kinds(events: PartitionedEvents, *, need_txn_id: bool) -> npt.NDArray[np.int8]:
    """The EventKind of each row of `events.table`, in the table's order."""
    table = events.table
    refuse_null(events, model.POSITION)
    if model.is_numbered(table.schema):
        has_table = table[model.TABLE].is_valid().to_numpy()
        return np.where(has_table, EventKind.DATA, EventKind.PASSED).astype(np.int8)
    refuse_null(events, model.TYPE)
    kinds_found = pc.index_in(table[model.TYPE], value_set=value_set(*_SPELLINGS))
    if kinds_found.null_count:  # lower case is rare, so upper-case only on a miss
        kinds_found = pc.index_in(pc.utf8_upper(table[model.TYPE]), value_set=value_set(*_SPELLINGS))
    if kinds_found.null_count:
        unknown = kinds_found.is_null().to_numpy()
        raise _event_error(events, unknown, model.TYPE, "An event has an unknown type.", "Use BEGIN, DATA or END.")
    kinds: npt.NDArray[np.int8] = _KINDS[kinds_found.to_numpy()]
    if table[model.TABLE].null_count:
        refuse_null(events, model.TABLE, kinds == EventKind.DATA)
    if need_txn_id:
        refuse_null(events, model.TXN_ID)
    return kinds


def refuse_null(events: PartitionedEvents, column: str, among: Mask | bool = True) -> None:
    """Raise InputError for the first NULL in `column` of the rows `among`."""
    values = events.table[column]
    if not values.null_count:
        return
    null = values.is_null().to_numpy() & among
    if null.any():
        raise _event_error(events, null, column, f"An event has no {column} (NULL).", _FILTER_HINT)


def _identity(table: pa.Table) -> tuple[str, ...]:
    """The columns that events of one place have in common."""
    own = model.NUMBERED.names if model.is_numbered(table.schema) else (model.TYPE,)
    return (*own, *repeats.CONTENT)


def _event_error(events: PartitionedEvents, wrong: Mask, column: str, message: str, hint: str) -> InputError:
    """An error that names the first of the rows `wrong` of `events.table`."""
    place = int((wrong if events.order is None else wrong[events.order]).argmax())
    row = place if events.order is None else int(events.order[place])
    position: Any = events.table[model.POSITION][row].as_py()
    if position is None:
        position = "NULL"
    return InputError(message, hint=hint, partition=events.name_at(place), position=position, column=column)


def _refuse_other_content(
    events: PartitionedEvents,
    table: pa.Table,
    positions: Indexes,
    again: Indexes,
    identity: Sequence[str],
) -> None:
    """Raise InputError if an event of `again` differs from the previous event at the same position.

    Dropping it as a repeat would silently lose a row.
    """
    before, after = table.take(pa.array(again - 1)), table.take(pa.array(again))
    for column in identity:
        same = same_values(before[column], after[column])
        if column == model.ROW and not pc.all(same, min_count=0).as_py():
            same = same_values(without_time(before[column]), without_time(after[column]))
        if not pc.all(same, min_count=0).as_py():
            place = int(again[int(pc.index(same, False).as_py())])
            raise InputError(
                "Two different events have the same position.",
                hint="Give every event its own, ascending position (in Kafka: the offset).",
                partition=events.name_at(place),
                position=int(positions[place]),
                column=column,
            )


def refuse_other_content(before: pa.Table, event: pa.Table, name: Partition, identity: Sequence[str] = ()) -> None:
    """Raise InputError unless `event`, at the same place as `before`, is the same event; one row each."""
    identity = identity or _identity(event)
    both_events = pa.concat_tables(
        [table_of_event.select([model.POSITION, *identity]) for table_of_event in (before, event)]
    )
    _refuse_other_content(
        one_partition(name, both_events), both_events, both_events[model.POSITION].to_numpy(), np.array([1]), identity
    )


def without_repeats(events: PartitionedEvents, repeated: Mask, identity: Sequence[str]) -> PartitionedEvents:
    """The events without those `repeated`; InputError if the content of any is not that of the event before it.

    The first event of a source partition has none before it here.
    """
    table = events.table if events.order is None else events.table.take(pa.array(events.order))
    again = np.setdiff1d(np.flatnonzero(repeated), events.starts)
    _refuse_other_content(events, table, table[model.POSITION].to_numpy(), again, identity)
    ends = np.cumsum(np.bincount(events.groups[~repeated], minlength=len(events.names)))
    return PartitionedEvents(events.names, ends, table.filter(pa.array(~repeated)))
