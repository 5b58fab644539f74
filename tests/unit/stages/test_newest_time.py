from __future__ import annotations

from bisect import bisect_left

from hypothesis import given, strategies as st

from starrocks_spark_stages.balanced.rules.plan import Times, newest_readable

A, B = ("a", 0), ("b", 0)
TIMES = st.integers(0, 20) | st.integers(0, 10**13)
ASCENDING = st.lists(TIMES, min_size=1, max_size=30).map(sorted)


@given(ASCENDING, ASCENDING, TIMES, TIMES)
def test_it_is_the_last_time_that_can_be_read(a: list[int], b: list[int], above_a: int, above_b: int) -> None:
    rows = {A: a, B: b}
    questions = 0

    def times_from(times: Times) -> dict[tuple[str, int], int | None]:
        nonlocal questions
        questions += 1
        places = {place: bisect_left(rows[place], time) for place, time in times.items()}
        return {place: rows[place][at] if at < len(rows[place]) else None for place, at in places.items()}

    high = {A: a[-1] + above_a, B: b[-1] + above_b}
    assert newest_readable({A: a[0], B: b[0]}, high, times_from) == {A: a[-1], B: b[-1]}
    assert questions <= 50


def test_nothing_is_asked_where_it_is_known() -> None:
    assert newest_readable({A: 5}, {A: 5}, lambda _: {}) == {A: 5}
