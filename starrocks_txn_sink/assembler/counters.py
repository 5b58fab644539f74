"""What the assembler did with the events of one source partition in one micro-batch, in numbers that add up."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from operator import add, attrgetter
from typing import Final

from starrocks_txn_sink.assembler.state import AssemblerState


@dataclass(frozen=True, slots=True)
class Counters:
    """Counts of one step; `+` adds them.

    Every DATA event is counted once: `data == rows + repeated_rows + abandoned_rows + dropped_rows` plus the growth
    of `open_rows` since the step before. The `open_*` and `state_bytes` figures are levels after the step, the others
    are flows of the step.
    """

    events: int = 0  # BEGIN, DATA and END that came in
    data: int = 0  # DATA events among them
    released: int = 0  # source transactions released whole
    rows: int = 0  # their rows
    empty: int = 0  # ENDs that released nothing, because the source transaction had no rows
    repeats: int = 0  # events at or below the last position seen, dropped
    repeated_rows: int = 0  # DATA events among them
    abandoned: int = 0  # unfinished source transactions that a new BEGIN put aside
    abandoned_rows: int = 0
    dropped: int = 0  # source transactions dropped by policy: BEGIN missing, or open too long
    dropped_rows: int = 0
    open: int = 0  # source transactions begun and not ended
    open_rows: int = 0
    state_bytes: int = 0  # Arrow bytes of the open rows

    def __add__(self, other: Counters) -> Counters:
        return Counters(*map(add, _values(self), _values(other)))

    def at(self, state: AssemblerState) -> Counters:
        """These flows, with the levels of `state`."""
        live = state.live()
        size = sum(each.bytes for each in live)
        return replace(self, open=len(live), open_rows=sum(each.rows for each in live), state_bytes=size)

    def then(self, later: Counters) -> Counters:
        """The flows of both, and the levels after the later one."""
        return replace(self + later, open=later.open, open_rows=later.open_rows, state_bytes=later.state_bytes)

    def as_dict(self) -> dict[str, int]:
        return dict(zip(self.names(), _values(self), strict=True))

    @classmethod
    def names(cls) -> list[str]:
        return [field.name for field in fields(cls)]


_values: Final = attrgetter(*Counters.names())  # a step is counted for each source partition and chunk
