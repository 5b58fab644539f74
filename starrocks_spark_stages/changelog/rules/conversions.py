"""Row kinds, `op_mapping`, and conversions of one change, with and without the key's previous row.

Rows are opaque values; None means no row. Source: examples 4.1 and 4.3 of Flink's proposal.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple

from starrocks_txn_sink.errors import OptionError

Row = Any  # opaque: rules only compare rows and pass them through


class RowKind(str, Enum):
    """Kind of a change; the value is its code (`+I`), the name its long form (`INSERT`)."""

    INSERT = "+I"
    UPDATE_BEFORE = "-U"
    UPDATE_AFTER = "+U"
    DELETE = "-D"

    __str__ = str.__str__

    @property
    def adds(self) -> bool:
        """Whether the change adds its row; the other kinds retract it."""
        return self in (RowKind.INSERT, RowKind.UPDATE_AFTER)


INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = RowKind


class RowChange(NamedTuple):
    """One row of a changelog."""

    kind: RowKind
    row: Row


Key = Hashable

Part = str | Sequence[str]
OpMapping = (
    Mapping[str, str]
    | Mapping[str, bool]
    | Mapping[bool, str]
    | Mapping[tuple[str, ...], tuple[str, ...]]
    | Mapping[Part, Part]
)
Kinds = tuple[RowKind, ...]

# --- op_mapping ---

UPDATE: Final = frozenset({UPDATE_BEFORE, UPDATE_AFTER})
GROUPS: Final = (UPDATE, frozenset({INSERT, UPDATE_AFTER}), frozenset({INSERT, UPDATE_BEFORE, UPDATE_AFTER}))

_ALLOWED_GROUPS = "'UPDATE_BEFORE, UPDATE_AFTER', 'INSERT, UPDATE_AFTER' and 'INSERT, UPDATE_BEFORE, UPDATE_AFTER'"


def code_to_kinds(op_mapping: OpMapping | None) -> dict[str, Kinds]:
    """The kinds of each code, -U before +U; by default a kind's name is its code.

    `{"c, r": "INSERT", "u": "UPDATE_BEFORE, UPDATE_AFTER"}` or `{("c", "r"): ("INSERT",)}`. Raises OptionError for
    an unknown kind, a kind or a code named twice, kinds that cannot share a code, an empty part.
    """
    mapping: dict[str, Kinds] = {}
    default = {kind.name: kind.name for kind in RowKind}
    for kinds, codes in _entries(default if op_mapping is None else op_mapping, kinds_at=1):
        for code in codes:
            if code in mapping:
                raise OptionError(
                    f"op_mapping names the code {code!r} twice.", hint="A code can have only one meaning: name it once."
                )
            mapping[code] = kinds
    return mapping


def kinds_to_code(op_mapping: OpMapping | None) -> dict[RowKind, str]:
    """The code of each kind to put out; the other kinds are dropped.

    `{"INSERT": "c", "UPDATE_BEFORE, UPDATE_AFTER": "u"}` or the form with tuples. By default every kind but
    UPDATE_BEFORE has its own name. Raises OptionError as `code_to_kinds` does, and for more than one code in an entry.
    """
    if op_mapping is None:
        return {kind: kind.name for kind in RowKind if kind is not UPDATE_BEFORE}
    entries = _entries(op_mapping, kinds_at=0)
    for _, codes in entries:
        if len(codes) != 1:
            raise OptionError(
                f"op_mapping gives {len(codes)} codes ({', '.join(codes)}) to one entry.",
                hint="A change is put out under one code: name one.",
            )
    return {kind: codes[0] for kinds, codes in entries for kind in kinds}


def pairs_updates(op_mapping: OpMapping | None) -> bool:
    """Whether -U and +U share an entry of the mapping, and so leave as one event."""
    return op_mapping is not None and any(UPDATE.issubset(kinds) for kinds, _ in _entries(op_mapping, kinds_at=0))


def codes_are_flags(op_mapping: OpMapping | None) -> bool:
    """Whether the codes to put out are True and False, not texts; OptionError for both kinds in one mapping."""
    codes = [] if op_mapping is None else list(op_mapping.values())
    flags = [isinstance(code, bool) for code in codes]
    if any(flags) and not all(flags):
        raise OptionError(
            f"op_mapping has the codes {', '.join(map(repr, codes))}, of which only some are True or False.",
            hint="Give every entry a flag, or every entry a text.",
        )
    return any(flags)


def _entries(op_mapping: OpMapping, *, kinds_at: int) -> list[tuple[Kinds, tuple[str, ...]]]:
    """The kinds and the codes of each entry; its left part (0) or its right part (1) has the kinds."""
    if not isinstance(op_mapping, Mapping) or not op_mapping:
        raise OptionError(
            f"op_mapping is {op_mapping!r}.", hint='Give a mapping such as {"c, r": "INSERT", "d": "DELETE"}.'
        )
    parts = [(_parts(codes), _parts(right)) for codes, right in op_mapping.items()]
    entries = [(_kinds(pair[kinds_at]), pair[1 - kinds_at]) for pair in parts]
    all_kinds = [kind for kinds, _ in entries for kind in kinds]
    for number, kind in enumerate(all_kinds):
        if kind in all_kinds[:number]:
            raise OptionError(
                f"op_mapping names {kind.name} in more than one entry.",
                hint=f"Name it once, with all of its codes in that entry, as in 'c, r' for {kind.name}.",
            )
    return entries


def _parts(text: object) -> tuple[str, ...]:
    """The parts of comma-separated text, or of a tuple or list of text; a flag as `true` or `false`."""
    parts: Sequence[object] = (text,)
    if isinstance(text, bool):
        parts = (str(text).lower(),)
    elif isinstance(text, str):
        parts = text.split(",")
    elif isinstance(text, (tuple, list)):
        parts = text
    entries = []
    for part in parts:
        if not isinstance(part, str) or not part.strip():
            raise OptionError(
                f"op_mapping has the part {part!r} in {text!r}.", hint="Every code and every kind is non-empty text."
            )
        entries.append(part.strip())
    if not entries:
        raise OptionError("op_mapping has an empty tuple.", hint="Name at least one code and one kind in each entry.")
    return tuple(entries)


def _kinds(names: tuple[str, ...]) -> Kinds:
    """Kinds by name, in the order of `RowKind`, so -U before +U."""
    unknown = [name for name in names if name not in RowKind.__members__]
    if unknown:
        raise OptionError(
            f"op_mapping names the row kind {unknown[0]!r}.", hint=f"Row kinds are {', '.join(RowKind.__members__)}."
        )
    kinds = tuple(kind for kind in RowKind if kind.name in names)
    if len(kinds) > 1 and frozenset(kinds) not in GROUPS:
        raise OptionError(
            f"op_mapping puts {', '.join(names)} into one entry, which are not the kinds of one change.",
            hint=f"Kinds that may share a code: {_ALLOWED_GROUPS}.",
        )
    if len(kinds) < len(names):
        raise OptionError(f"op_mapping names a row kind twice in {', '.join(names)}.", hint="Name each kind once.")
    return kinds


# --- conversions ---


class Converted(NamedTuple):
    """The changes to put out for one event or change, and the key's row after them."""

    changes: list[RowChange]
    previous: Row | None


def decode(kinds: Kinds, before: Row, after: Row) -> list[RowChange]:
    """Changes of an event with images: -U and -D take `before`, +I and +U take `after`.

    A flat event passes its row as both images.
    """
    return [RowChange(kind, after if kind.adds else before) for kind in kinds]


def decode_with_previous(kinds: Kinds, row: Row, before: Row | None, previous: Row | None) -> Converted:
    """Changes of an event whose code may need the key's previous row.

    `row` is the after image, the row of a flat event, or the row to delete; `before` is the before image if the event
    has one. A code for several kinds is an INSERT while the key has no row, an update afterwards. A delete leaves with
    its own row, never completed from state.
    """
    if len(kinds) == 1:
        (kind,) = kinds
        if kind.adds:
            return Converted([RowChange(kind, row)], row)
        return Converted([RowChange(kind, row if before is None else before)], None if kind is DELETE else previous)
    before = previous if before is None else before
    if before is None:
        return Converted([RowChange(INSERT, row)], row)
    retract = [RowChange(UPDATE_BEFORE, before)] if UPDATE_BEFORE in kinds else []
    return Converted([*retract, RowChange(UPDATE_AFTER, row)], row)


class ChangeEvent(NamedTuple):
    """A change event; a missing image is None."""

    code: str
    before: Row | None
    after: Row | None


class EncodeResult(NamedTuple):
    """The event of a change (None: no event, or only with the next change), and the key's previous row afterwards."""

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
            code = self.codes.get(INSERT if previous is None and INSERT in self.codes else UPDATE_AFTER)
            event = None if code is None else ChangeEvent(code, previous, change.row)
            return EncodeResult(event, change.row if self.keyed else None)
        if not self.keyed:
            return EncodeResult(encode(self.codes, change), previous)
        if change.kind is INSERT or previous is None:
            return EncodeResult(encode(self.codes, change), change.row if change.kind is INSERT else None)
        return EncodeResult(encode(self.codes, RowChange(DELETE, previous)), None)


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


def normalize(change: RowChange, previous: Row | None, *, with_update_before: bool = False) -> Converted:
    """Normalized form of one change, given its key's row (None: no row, or expired state).

    The first added row is +I; a later one is +U, after its -U if `with_update_before`. A delete carries the previous
    row. Dropped: a row equal to the previous one, a delete without a previous row, and every -U of the input, because
    the rule makes its own.
    """
    if change.kind is UPDATE_BEFORE:
        return Converted([], previous)
    if change.kind is DELETE:
        return Converted([] if previous is None else [RowChange(DELETE, previous)], None)
    if previous is None:
        return Converted([RowChange(INSERT, change.row)], change.row)
    if previous == change.row:
        return Converted([], previous)
    retract = [RowChange(UPDATE_BEFORE, previous)] if with_update_before else []
    return Converted([*retract, RowChange(UPDATE_AFTER, change.row)], change.row)


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


def release(held_rows: Iterable[TimedRow], arrived: Iterable[TimedRow], watermark: int | None) -> ReleaseResult:
    """Release the rows at or below `watermark`; a row that arrives at or below it is late.

    `watermark` is in the unit of `TimedRow.time`. Before the first watermark it is None: no row is late or released.
    """
    new = list(arrived)
    if watermark is None:
        return ReleaseResult([], [*held_rows, *new], 0)
    timely = [row for row in new if row.time > watermark]
    waiting = [*held_rows, *timely]
    ready = sorted((row for row in waiting if row.time <= watermark), key=lambda row: row[:2])
    return ReleaseResult(ready, [row for row in waiting if row.time > watermark], len(new) - len(timely))


class ClaimingRow(NamedTuple):
    """A row that claims a sink key; the rows of a sink key are in the order of their places, which never change."""

    place: int
    key: Key | None
    row: Row


class MaterializeResult(NamedTuple):
    """Change for the sink (None: no change), and whether a retraction found no row."""

    change: RowChange | None
    swallowed: bool = False


class ClaimingRows:
    """The rows of a sink key. A change costs the same however many rows there are.

    Rows are the same if their upsert keys are equal or, without upsert keys, if they are equal as a whole.
    """

    def __init__(self, rows: Iterable[ClaimingRow] = ()) -> None:
        self._rows = {row.place: row for row in rows}
        self._places = [*self._rows]  # ascending; the last place has a row, earlier ones may have lost theirs
        self._same: dict[Any, deque[int]] = {}
        for claim in self._rows.values():
            self._same.setdefault(_identity(claim.key, claim.row), deque()).append(claim.place)

    @property
    def rows(self) -> list[ClaimingRow]:
        """The rows in the order of their places; the last one is shown."""
        return [*self._rows.values()]

    def apply(self, change: RowChange, upsert_key: Key | None = None) -> MaterializeResult:
        """Apply one change.

        An added row replaces the row with its upsert key in place, or is appended. A retraction removes the first row
        that is the same. If that was the last row, the new last row is shown. If no row is left, the key is deleted
        with the retracting row. A retraction without a match is swallowed.
        """
        same = self._same.setdefault(_identity(upsert_key, change.row), deque())
        if change.kind.adds:
            return self._add(change, upsert_key, same)
        if not same:
            return MaterializeResult(None, swallowed=True)
        place = same.popleft()
        was_last = place == self._places[-1]
        del self._rows[place]
        while self._places and self._places[-1] not in self._rows:
            self._places.pop()
        if not self._rows:
            return MaterializeResult(RowChange(DELETE, change.row))
        last = self._rows[self._places[-1]]
        return MaterializeResult(RowChange(UPDATE_AFTER, last.row) if was_last else None)

    def _add(self, change: RowChange, upsert_key: Key | None, same: deque[int]) -> MaterializeResult:
        shown_change = RowChange(UPDATE_AFTER if self._rows else INSERT, change.row)
        if upsert_key is not None and same:
            place = same[0]
        else:
            place = self._places[-1] + 1 if self._places else 0
            self._places.append(place)
            same.append(place)
        self._rows[place] = ClaimingRow(place, upsert_key, change.row)
        return MaterializeResult(shown_change)


def _identity(upsert_key: Key | None, row: Row) -> tuple[bool, Any]:
    return (False, row) if upsert_key is None else (True, upsert_key)


def needs_materializer(mode: str, sink_key: tuple[str, ...], upsert_key: tuple[str, ...] | None) -> bool:
    """Whether to materialize: `force` always, `none` never, `auto` unless the upsert key is the sink key.

    Without an upsert key nothing guarantees that the sink key is unique, or that its changes arrive in order.
    """
    if mode == "auto":
        return upsert_key is None or set(upsert_key) != set(sink_key)
    return mode == "force"
