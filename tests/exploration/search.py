"""Breadth-first search: every reachable state once, or the shortest way to a broken invariant."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from .moves import Action, Protocol
from .setups import Setup
from .state import State, Violation

_BITS = 20  # for each part of a state: its number among all parts of its kind
_MASK = (1 << _BITS) - 1


@dataclass(frozen=True, slots=True)
class Explored:
    """Every state was seen, and every invariant held in all of them. `depth` is the longest shortest way to a state."""

    states: int
    moves: int
    depth: int


@dataclass(frozen=True, slots=True)
class Counterexample:
    """The shortest sequence of moves that breaks an invariant, found after `states` states."""

    kind: str
    trace: tuple[str, ...]
    states: int


def explore(setup: Setup) -> Explored | Counterexample:
    """Search `setup` to its end, or to the first violation. Where one is expected, the way is remembered at once."""
    with _no_collections():
        return (None if setup.without else _sweep(setup)) or _search(setup)


@dataclass(slots=True)
class Packing:
    """States as single integers: parts that occur again and again are numbered once. Exact, unlike a hash."""

    _numbers: dict[tuple[object, ...], int] = field(default_factory=dict)
    _parts: list[Any] = field(default_factory=list)

    def pack(self, state: State) -> int:
        numbers = self._numbers
        packed = 0
        for part in (state[:4], state.log, state.messages, *state.writers):
            number = numbers.get(part)
            if number is None:
                number = self._new(part)
            packed = packed << _BITS | number
        return packed

    def unpack(self, packed: int, writers: int) -> State:
        parts = []
        for _ in range(writers + 3):
            parts.append(self._parts[packed & _MASK])
            packed >>= _BITS
        parts.reverse()
        (job, lane, position, applied), log, messages, *packed_writers = parts
        return State(job, lane, position, applied, log, messages, tuple(packed_writers))

    def _new(self, part: tuple[object, ...]) -> int:
        number = self._numbers[part] = len(self._parts)
        if number > _MASK:
            raise OverflowError("More parts than their numbers have room for.")
        self._parts.append(part)
        return number


def _sweep(setup: Setup) -> Explored | None:
    """All states, without remembering how they were reached; None when an invariant breaks."""
    protocol, packing = Protocol(setup), Packing()
    pack, unpack, writers = packing.pack, packing.unpack, len(setup.roles)
    start = pack(setup.start())
    states = {start}
    frontier, depth, moves = [start], -1, 0
    while frontier:
        depth += 1
        following: list[int] = []
        for packed in frontier:
            try:
                moves_here = protocol.moves(unpack(packed, writers))
            except Violation:
                return None
            moves += len(moves_here)
            for _, after in moves_here:
                number = pack(after)
                if number not in states:
                    states.add(number)
                    following.append(number)
        frontier = following
    return Explored(len(states), moves, depth)


def _search(setup: Setup) -> Explored | Counterexample:
    """The same search, remembering how each state was reached, which takes more room."""
    protocol = Protocol(setup)
    start = setup.start()
    origins: dict[State, tuple[State, Action] | None] = {start: None}
    frontier, depth, moves = [start], -1, 0
    while frontier:
        depth += 1
        following: list[State] = []
        for state in frontier:
            try:
                moves_here = protocol.moves(state)
            except Violation as violation:
                return Counterexample(violation.kind, (*_way(origins, state, protocol), violation.action), len(origins))
            moves += len(moves_here)
            for action, after in moves_here:
                if after not in origins:
                    origins[after] = (state, action)
                    following.append(after)
        frontier = following
    return Explored(len(origins), moves, depth)


def _way(origins: dict[State, tuple[State, Action] | None], state: State, protocol: Protocol) -> list[str]:
    steps: list[str] = []
    while (before := origins[state]) is not None:
        state, action = before
        steps.append(protocol.said(action))
    return steps[::-1]


@contextmanager
def _no_collections() -> Iterator[None]:
    """States hold no cycles, and looking for some among millions of them takes most of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
