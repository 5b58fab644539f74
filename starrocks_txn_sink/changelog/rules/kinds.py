"""Type checks of a caller's parameters, before any DataFrame is read: names, flags, choices."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

from starrocks_txn_sink.errors import OptionError


def column_names(parameter: str, value: str | Sequence[str] | None) -> tuple[str, ...]:
    """A parameter that names any number of columns, as a tuple; OptionError for a value that is no name."""
    if value is None or isinstance(value, str):
        return () if value is None else (value,)
    if isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value):
        return tuple(value)
    raise OptionError(f"{parameter} is {value!r}.", hint="Name columns by text: one name, or a list or tuple of names.")


def check_names(given: Mapping[str, str], or_none: Mapping[str, str | None]) -> None:
    """OptionError unless each parameter is one name; parameters in `or_none` may be None."""
    for parameter, value in {**given, **{name: value for name, value in or_none.items() if value is not None}}.items():
        if not isinstance(value, str) or not value:
            optional = ", or leave it out" if parameter in or_none else ""
            raise OptionError(f"{parameter} is {value!r}.", hint=f"Give one name, as text{optional}.")


def check_flags(**flags: bool) -> None:
    """OptionError for a flag that is no bool: the text "false" would count as true."""
    for parameter, value in flags.items():
        if not isinstance(value, bool):
            raise OptionError(f"{parameter} is {value!r}.", hint="Use True or False.")


def check_choice(parameter: str, value: str, allowed: Sequence[str]) -> None:
    """OptionError unless `value` is one of `allowed`."""
    if value not in allowed:
        raise OptionError(f"{parameter} is {value!r}.", hint=f"Use one of: {', '.join(allowed)}.")


Row = Any  # opaque: rules only compare rows and pass them through


class RowKind(StrEnum):
    """Kind of a change; the value is its code (`+I`), the name its long form (`INSERT`)."""

    INSERT = "+I"
    UPDATE_BEFORE = "-U"
    UPDATE_AFTER = "+U"
    DELETE = "-D"

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
OpMapping = Mapping[str, str] | Mapping[tuple[str, ...], tuple[str, ...]] | Mapping[Part, Part]
Kinds = tuple[RowKind, ...]

UPDATE: Final = frozenset({UPDATE_BEFORE, UPDATE_AFTER})
GROUPS: Final = (UPDATE, frozenset({INSERT, UPDATE_AFTER}), frozenset({INSERT, UPDATE_BEFORE, UPDATE_AFTER}))
DEFAULT_CODES: Final = {kind.name: kind.name for kind in RowKind}

_ALLOWED = "INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE"
_ALLOWED_GROUPS = "'UPDATE_BEFORE, UPDATE_AFTER', 'INSERT, UPDATE_AFTER' and 'INSERT, UPDATE_BEFORE, UPDATE_AFTER'"


def code_to_kinds(op_mapping: OpMapping | None) -> dict[str, Kinds]:
    """The kinds of each code, -U before +U; by default a kind's name is its code.

    `{"c, r": "INSERT", "u": "UPDATE_BEFORE, UPDATE_AFTER"}` or `{("c", "r"): ("INSERT",)}`. Raises OptionError for
    an unknown kind, a kind or a code named twice, kinds that cannot share a code, an empty part.
    """
    mapping: dict[str, Kinds] = {}
    entries = _entries(DEFAULT_CODES if op_mapping is None else op_mapping)
    groups = [_kinds(kinds) for _, kinds in entries]
    _refuse_repeated_kinds(groups)
    for (codes, _), kinds in zip(entries, groups, strict=True):
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
    entries = _entries(op_mapping)
    groups = [_kinds(kinds) for kinds, _ in entries]
    _refuse_repeated_kinds(groups)
    for _, codes in entries:
        if len(codes) != 1:
            raise OptionError(
                f"op_mapping gives {len(codes)} codes ({', '.join(codes)}) to one entry.",
                hint="A change is put out under one code: name one.",
            )
    return {kind: codes[0] for (_, codes), kinds in zip(entries, groups, strict=True) for kind in kinds}


def pairs_updates(op_mapping: OpMapping | None) -> bool:
    """Whether -U and +U share an entry of the mapping, and so leave as one event."""
    return op_mapping is not None and any(UPDATE.issubset(_kinds(kinds)) for kinds, _ in _entries(op_mapping))


def _entries(op_mapping: OpMapping) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    if not isinstance(op_mapping, Mapping) or not op_mapping:
        raise OptionError(
            f"op_mapping is {op_mapping!r}.", hint='Give a mapping such as {"c, r": "INSERT", "d": "DELETE"}.'
        )
    return [(_parts(left), _parts(right)) for left, right in op_mapping.items()]


def _parts(text: object) -> tuple[str, ...]:
    """The parts of comma-separated text, or of a tuple or list of text."""
    parts: Sequence[object] = (text,)
    if isinstance(text, str):
        parts = text.split(",")
    elif isinstance(text, (tuple, list)):
        parts = text
    cleaned = []
    for part in parts:
        if not isinstance(part, str) or not part.strip():
            raise OptionError(
                f"op_mapping has the part {part!r} in {text!r}.", hint="Every code and every kind is non-empty text."
            )
        cleaned.append(part.strip())
    if not cleaned:
        raise OptionError("op_mapping has an empty tuple.", hint="Name at least one code and one kind in each entry.")
    return tuple(cleaned)


def _kinds(names: Iterable[str]) -> Kinds:
    """Kinds by name, in the order of `RowKind`, so -U before +U."""
    names = tuple(names)
    unknown = [name for name in names if name not in RowKind.__members__]
    if unknown:
        raise OptionError(f"op_mapping names the row kind {unknown[0]!r}.", hint=f"Row kinds are {_ALLOWED}.")
    kinds = tuple(kind for kind in RowKind if kind.name in names)
    if len(kinds) > 1 and frozenset(kinds) not in GROUPS:
        raise OptionError(
            f"op_mapping puts {', '.join(names)} into one entry, which are not the kinds of one change.",
            hint=f"Kinds that may share a code: {_ALLOWED_GROUPS}.",
        )
    if len(kinds) < len(names):
        raise OptionError(f"op_mapping names a row kind twice in {', '.join(names)}.", hint="Name each kind once.")
    return kinds


def _refuse_repeated_kinds(groups: Iterable[Kinds]) -> None:
    seen: set[RowKind] = set()
    for kind in (kind for group in groups for kind in group):
        if kind in seen:
            raise OptionError(
                f"op_mapping names {kind.name} in more than one entry.",
                hint=f"Name it once, with all of its codes in that entry, as in 'c, r' for {kind.name}.",
            )
        seen.add(kind)


__all__ = ["DELETE", "GROUPS", "OpMapping", "code_to_kinds", "kinds_to_code", "pairs_updates"]
