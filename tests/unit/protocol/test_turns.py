"""Who has the turn at a table of a label."""

from __future__ import annotations

from collections import deque

from hypothesis import given, strategies as st

from starrocks_txn_sink.protocol.turns import TurnQueue, TurnRequest

TURNS = [TurnRequest(label, table) for label in ("l", "m") for table in ("t", "u")]


@given(st.lists(st.tuples(st.sampled_from(TURNS), st.integers(0, 5), st.booleans())))
def test_a_turn_has_one_holder_and_goes_to_who_has_waited_longest(
    moves: list[tuple[TurnRequest, int, bool]],
) -> None:
    queue, lines, places = TurnQueue(), {turn: deque[int]() for turn in TURNS}, dict[int, TurnRequest]()
    for turn, holder, asks in moves:
        if asks and holder not in places:
            assert queue.take(turn, holder) is (not lines[turn])
            lines[turn].append(holder)
            places[holder] = turn
        elif not asks:
            left = places.pop(holder, None)
            before = lines[left][0] if left is not None else None
            if left is not None:
                lines[left].remove(holder)
            follows = lines[left][0] if left is not None and before == holder and lines[left] else None
            assert queue.leave(holder) == follows
        for other in range(6):
            line = lines[places[other]] if other in places else deque[int]()
            assert queue.is_awaited(other) is (len(line) > 1 and line[0] == other)
