"""Sources that follow one another under one name: from a time on (of Kafka's messages) another one sends.

A database that was restored, or a server whose log was reset, begins again with places and ids that others had before.
Nothing in its messages tells them from repeats, so the user says from when on it is another source. It is a source
partition of its own then, with a state and a position in the ledger, and is written behind the one before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.errors import OptionError

_OPTION: Final = "new_sources"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_BEFORE_ALL: Final = np.iinfo(np.int64).min  # the place in time of a message without one


def as_text(time: int) -> str:
    """A time of Kafka's (milliseconds) as users write it."""
    return f"{(_EPOCH + timedelta(milliseconds=time)).replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


def begins(name: str, time: int) -> str:
    """The name of the source that follows under `name` from a time on (milliseconds), as users declare it."""
    return f"{name}@{as_text(time)}"


def checked(declared: Sequence[str]) -> tuple[str, ...]:
    """The declared sources, each like shop@2026-11-29T01:02:03.456Z; raises OptionError for another text."""
    names = (declared,) if isinstance(declared, str) else tuple(declared)
    for name in names:
        _start_of(name)
    return names


def _start_of(name: str) -> int:
    """The time (milliseconds) from which on a declared source sends."""
    try:
        first, _, text = name.rpartition("@")
        time = datetime.fromisoformat(text.replace("Z", "+00:00"))
        start: int = (time - _EPOCH) // timedelta(milliseconds=1)
        wrong = not first
    except (AttributeError, TypeError, ValueError):
        start, wrong = 0, True
    if wrong:
        raise OptionError(
            f"{_OPTION} has {name!r}, which is no source with a time.",
            hint="Write it as the error source_changed has it: NAME@2026-11-29T01:02:03.456Z.",
            option=_OPTION,
        )
    return start


class Successions:
    """The sources that follow others under their names: `declared`, as `checked` gives them."""

    def __init__(self, declared: Sequence[str]) -> None:
        by_name: dict[str, dict[int, str]] = {}
        for name in declared:
            by_name.setdefault(name.rpartition("@")[0], {})[_start_of(name)] = name
        self._starts = {first: np.array(sorted(names), dtype=np.int64) for first, names in by_name.items()}
        self._names = {first: [first, *(names[at] for at in sorted(names))] for first, names in by_name.items()}
        self._first = {name: first for first, names in self._names.items() for name in names}

    def number(self, name: str) -> int:
        """Which one of the sources of its name `name` is, from 0."""
        return self._names.get(self.first(name), [name]).index(name)

    def first(self, name: str) -> str:
        """The name of the first source of those of `name`."""
        return self._first.get(name, name)

    def later(self, name: str) -> list[str]:
        """The names of the sources that follow `name`."""
        return self._names.get(self.first(name), [name])[self.number(name) + 1 :]

    def parts(self, name: str, times: pa.ChunkedArray) -> Iterator[tuple[str, pa.Array | None]]:
        """The sources of messages with `times`, under the first name `name`, each with its mask; None: all messages.

        A message without a time is of the first one.
        """
        if name not in self._starts:
            yield name, None
            return
        of_message = np.searchsorted(self._starts[name], pc.fill_null(times, _BEFORE_ALL).to_numpy(), side="right")
        for number in np.unique(of_message).tolist():
            mask = of_message == number
            yield self._names[name][number], None if mask.all() else pa.array(mask)
