"""Who has the turn at a table of a label."""

from __future__ import annotations

import random
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


@given(st.lists(st.permutations(range(4)), min_size=1, max_size=5), st.integers(1, 3), st.randoms())
def test_lanes_that_take_tables_in_any_order_all_end(
    orders: list[list[int]], threads: int, chance: random.Random
) -> None:
    """Each thread of a lane loads the lane's next table, in its turn; turns end in any order."""
    queue, left = TurnQueue(), {lane: deque(order) for lane, order in enumerate(orders)}
    running: set[tuple[int, int]] = set()

    def ask(holder: tuple[int, int]) -> None:
        tables = left[holder[0]]
        if tables and queue.take(TurnRequest("l", str(tables.popleft())), holder):
            running.add(holder)

    for holder in [(lane, thread) for lane in left for thread in range(threads)]:
        ask(holder)
    loads = 0
    while running:
        ended = chance.choice(sorted(running))
        running.discard(ended)
        loads += 1
        following = queue.leave(ended)
        if following is not None:
            assert isinstance(following, tuple)
            running.add(following)
        ask(ended)
    assert loads == 4 * len(orders)
