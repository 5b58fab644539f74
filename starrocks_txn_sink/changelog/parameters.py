"""What a caller gave, checked before any frame is looked at: names are text, flags are flags, choices are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from starrocks_txn_sink.errors import OptionError


def named(parameter: str, value: str | Sequence[str] | None) -> tuple[str, ...]:
    """A parameter that names any number of columns, as a tuple; OptionError for what is no name."""
    if value is None or isinstance(value, str):
        return () if value is None else (value,)
    if isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value):
        return tuple(value)
    raise OptionError(f"{parameter} is {value!r}.", hint="Name columns by text: one name, or a list or tuple of names.")


def check_names(given: Mapping[str, str], or_none: Mapping[str, str | None]) -> None:
    """OptionError unless each parameter is one name; those in `or_none` may also be left out."""
    for parameter, value in {**given, **{name: value for name, value in or_none.items() if value is not None}}.items():
        if not isinstance(value, str) or not value:
            optional = ", or leave it out" if parameter in or_none else ""
            raise OptionError(f"{parameter} is {value!r}.", hint=f"Give one name, as text{optional}.")


def check_flags(**flags: bool) -> None:
    """OptionError for a flag that is text or a number: the text "false" would be taken for true."""
    for parameter, value in flags.items():
        if not isinstance(value, bool):
            raise OptionError(f"{parameter} is {value!r}.", hint="Use True or False.")


def check_choice(parameter: str, value: str, allowed: Sequence[str]) -> None:
    """OptionError unless `value` is one of `allowed`."""
    if value not in allowed:
        raise OptionError(f"{parameter} is {value!r}.", hint=f"Use one of: {', '.join(allowed)}.")
