"""How an option is declared: once, as a dataclass field that carries its kind, unit, default and meaning.

Construction (`settle`) and the page `docs/options.md` both read these declarations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from typing import Any

from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.options.kinds import Kind

_REQUIRED: Any = MISSING


@dataclass(frozen=True, slots=True)
class Declaration:
    """What is known about one option beside its name."""

    kind: Kind
    meaning: str
    unit: str
    default: Any
    derive: Callable[[Any], Any] | None
    default_text: str


def option(
    kind: Kind,
    meaning: str,
    *,
    default: Any = _REQUIRED,
    unit: str = "",
    derive: Callable[[Any], Any] | None = None,
    default_text: str = "",
    secret: bool = False,
) -> Any:
    """Declare an option. With `derive` its default is computed from the other options when it is left out."""
    shown = default_text or ("required" if default is MISSING else _show(default))
    declaration = Declaration(kind, meaning, unit, default, derive, shown)
    metadata = {"option": declaration}
    if default is MISSING and derive is None:
        return field(metadata=metadata, repr=not secret)
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata, repr=not secret)
    return field(default=None if derive else default, metadata=metadata, repr=not secret)


def declarations(options: Any) -> Iterator[tuple[str, Declaration]]:
    """Name and declaration of each option of a dataclass, in the order of its fields."""
    for one in fields(options):
        yield one.name, one.metadata["option"]


def settle(options: Any) -> None:
    """Check every option of a frozen dataclass in its `__post_init__`, and fill in the derived defaults.

    None means "left out": it is replaced by the default. Raises OptionError for the first option that is wrong.
    """
    left_out = []
    for name, declared in declarations(options):
        value = getattr(options, name)
        if value is not None:
            object.__setattr__(options, name, declared.kind.check(name, value))
        elif declared.derive is not None:
            left_out.append((name, declared.derive))
        elif declared.default is MISSING:
            raise OptionError(f"{name} is missing.", hint=f"Set {name}: {declared.meaning}", option=name)
        elif declared.default is not None:
            object.__setattr__(options, name, declared.kind.check(name, declared.default))
    for name, derive in left_out:
        object.__setattr__(options, name, derive(options))


def _show(default: Any) -> str:
    if default is None:
        return "none"
    if isinstance(default, Enum):
        return f"`{default.value}`"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if default in ({}, ()):
        return "empty"
    return f"`{default}`" if default != "" else "empty"
