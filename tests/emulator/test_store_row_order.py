"""Rows of one key inside one transaction: in the order of their arrival, or in an arbitrary one that a seed repeats."""

from __future__ import annotations

from pathlib import Path

import pytest

from starrocks_emulator.settings import RowOrder
from starrocks_emulator.tables.apply import Shuffle
from starrocks_emulator.tables.store import Store
from tests.support.store_setup import JSON_ARRAY, load, rows, with_tables

KEYS = range(40)
TWICE = [{"order_id": key, "customer_id": version} for version in (1, 2) for key in KEYS]


def versions(
    folder: Path, shuffle: Shuffle, *, visible: bool = True, headers: dict[str, str] = JSON_ARRAY
) -> list[int]:
    """Which version of each key stays when one transaction carries two."""
    store = with_tables(Store(folder, shuffle=shuffle))
    try:
        txn_id, counts = load(store, "orders", TWICE, visible=visible, headers=headers)
        assert counts.loaded == 80
        store.publish(txn_id)
        return [version for (version,) in rows(store, "SELECT customer_id FROM orders ORDER BY order_id")]
    finally:
        store.close()


def test_by_default_the_last_to_arrive_stays(tmp_path: Path) -> None:
    assert versions(tmp_path, Shuffle()) == [2] * 40


@pytest.mark.parametrize("visible", [True, False], ids=["at once", "later"])
def test_in_arbitrary_order_now_one_stays_and_now_the_other(tmp_path: Path, visible: bool) -> None:
    first = versions(tmp_path / "a", Shuffle(RowOrder.ARBITRARY, 1), visible=visible)
    assert set(first) == {1, 2}
    assert versions(tmp_path / "b", Shuffle(RowOrder.ARBITRARY, 1), visible=visible) == first
    assert versions(tmp_path / "c", Shuffle(RowOrder.ARBITRARY, 2), visible=visible) != first


def test_partial_updates_are_shuffled_too(tmp_path: Path) -> None:
    headers = {**JSON_ARRAY, "partial_update": "true", "columns": "order_id,customer_id"}
    assert set(versions(tmp_path, Shuffle(RowOrder.ARBITRARY, 1), headers=headers)) == {1, 2}
