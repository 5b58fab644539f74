"""Breadth-first search: every reachable state once, or the shortest way to a broken invariant."""

from __future__ import annotations

from dataclasses import dataclass

from .moves import Action, Protocol
from .setups import Setup
from .state import State, Violation


@dataclass(frozen=True, slots=True)
class Explored:
    """Every state was seen, and every invariant held in all of them."""

    states: int
    moves: int
    depth: int


@dataclass(frozen=True, slots=True)
class Counterexample:
    """The shortest sequence of moves that breaks an invariant."""

    kind: str
    trace: tuple[str, ...]
    states: int


def explore(setup: Setup) -> Explored | Counterexample:
    """Search `setup` to its end, or to the first violation."""
    found = _sweep(setup)
    return found if isinstance(found, Explored) else _shortest(setup)


def _sweep(setup: Setup) -> Explored | None:
    protocol = Protocol(setup)
    start = setup.start()
    seen = {start}
    frontier, depth, moves = [start], 0, 0
    while frontier:
        depth += 1
        following: list[State] = []
        for state in frontier:
            try:
                found = protocol.moves(state)
            except Violation:
                return None
            moves += len(found)
            for _, after in found:
                if after not in seen:
                    seen.add(after)
                    following.append(after)
        frontier = following
    return Explored(len(seen), moves, depth)


def _shortest(setup: Setup) -> Counterexample:
    """The same search once more, this time remembering how each state was reached."""
    protocol = Protocol(setup)
    start = setup.start()
    came: dict[State, tuple[State, Action] | None] = {start: None}
    frontier = [start]
    while frontier:
        following: list[State] = []
        for state in frontier:
            try:
                found = protocol.moves(state)
            except Violation as violation:
                return Counterexample(violation.kind, (*_way(came, state, protocol), violation.action), len(came))
            for action, after in found:
                if after not in came:
                    came[after] = (state, action)
                    following.append(after)
        frontier = following
    raise AssertionError("The search found a violation once, and then none.")


def _way(
    came: dict[State, tuple[State, Action] | None], state: State, protocol: Protocol
) -> list[str]:
    steps: list[str] = []
    while (before := came[state]) is not None:
        state, action = before
        steps.append(protocol.said(action))
    return steps[::-1]
