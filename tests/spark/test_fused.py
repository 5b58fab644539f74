"""The sink assembles: raw events in, whole source transactions out, what is open carried in the checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fused_shop import FusedShop, script
from pyspark.sql import SparkSession

from starrocks_txn_sink.emulator.server import Emulator

pytestmark = pytest.mark.spark


@pytest.fixture(params=["lines", "events"])
def shop(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[FusedShop]:
    with Emulator(tmp_path / "emulator") as server:
        made = FusedShop(spark, server, tmp_path)
        made.raw = request.param == "lines"
        yield made
        assert made.open_labels() == []


def test_open_transactions_are_carried_over_batches_and_a_restart(shop: FusedShop) -> None:
    shop.put(script("p-0", "B D D E B D"), script("p-1", "B D"))
    shop.put(script("p-0", "D", 7))
    assert [(r.batch_id, r.rows) for r in shop.go()] == [(0, 2)]
    shop.put(script("p-0", "D E", 8), script("p-1", "E B D D", 3))
    shop.put(script("p-1", "E", 7))
    assert [(r.batch_id, r.rows) for r in shop.go()] == [(2, 4), (3, 2)]
    assert shop.notes() == [
        ("p-0", 2), ("p-0", 3), ("p-0", 6), ("p-0", 7), ("p-0", 8), ("p-1", 2), ("p-1", 5), ("p-1", 6)
    ]  # fmt: skip
