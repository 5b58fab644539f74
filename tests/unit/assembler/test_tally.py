"""The short ways of the tally: without a sort they find what a sort finds."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink.assembler.verified import tally
from starrocks_txn_sink.assembler.verified.gtids import by_server, has_gtid
from starrocks_txn_sink.assembler.verified.repeats import Settled
from tests.support.verified_source import end, row, table

events = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(0, 2)), max_size=12)


@given(events)
def test_rows_in_order(rows: list[tuple[int, int, int]]) -> None:
    code, orders, times = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    places = np.arange(len(code))
    expected = places[np.lexsort((times, orders, code))]
    assert tally._in_order(places, code, orders, times).tolist() == expected.tolist()


@given(st.lists(st.permutations(range(1, 5)), max_size=4))
def test_rows_that_are_numbered_once_need_no_sort(numbers: list[list[int]]) -> None:
    orders = np.array([number for each in numbers for number in each], dtype=np.int64)
    code = np.repeat(np.arange(len(numbers)), 4)
    places = np.flatnonzero(np.ones(len(code), dtype=bool))
    in_order = tally._in_order(places, code, orders, np.zeros(len(code), dtype=np.int64))
    assert orders[in_order].tolist() == [1, 2, 3, 4] * len(numbers)
    assert code[in_order].tolist() == code.tolist()


@pytest.mark.parametrize("few", [0, 8])
def test_the_counts_of_collections(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "_FEW_PAIRS", few)
    of_one = [row("1", 1), row("1", 2, "public.b"), end("1", 0, 9, {"public.a": 1, "public.b": 1})]
    of_two = [row("2", 1), row("2", 2), end("2", 1, 9, {"public.a": 1, "public.b": 1})]
    of_three = [row("3", 1), row("3", 2, "public.c"), end("3", 2, 9, {"public.a": 2})]
    judged = table([*of_one, *of_two, *of_three]).append_column("arrived", pa.array(np.zeros(9)))
    counts = tally.tally(judged, -1.0, lambda chosen: chosen, Settled())
    assert counts.collections_agree.tolist() == [True, False, False]
    assert counts.whole.tolist() == [True, False, False]


def test_ids_with_a_hyphen_may_be_gtids() -> None:
    gtid = "0-1-17"
    ids = pa.array([gtid, "5", None, "file=mysql-bin.000003,pos=4"])
    assert has_gtid(ids).tolist() == [True, False, False, False]
    assert [(name, places.tolist(), numbers.tolist()) for name, places, numbers in by_server(ids)] == [
        ("0-1", [0], [17])
    ]
    assert not has_gtid(ids.slice(1, 2)).any()
    assert not by_server(ids.slice(1, 2))
