"""Type checks of a caller's parameters, before any DataFrame is read: names, flags, choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
