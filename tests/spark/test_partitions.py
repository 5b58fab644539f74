"""Tables with automatic partitions on a server whose loads can neither make nor open them (wire contract 4.17)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from starrocks_txn_sink import StarRocksSink
from starrocks_txn_sink.errors import PartitionClosed
from tests.support.exactly_once_shop import Shop
from tests.support.log_records import records_of

pytestmark = [
    pytest.mark.spark,
    pytest.mark.emulator(
        "CREATE TABLE shop.days (id INT NOT NULL, d DATETIME NOT NULL) PRIMARY KEY(id, d)"
        " PARTITION BY date_trunc('day', d) DISTRIBUTED BY HASH(id)",
        "CREATE TABLE shop.kinds (id INT, kind VARCHAR(9)) DUPLICATE KEY(id) PARTITION BY (kind)"
        " DISTRIBUTED BY HASH(id)",
    ),
]


@pytest.fixture
def shop(spark: Any, server: Any, tmp_path: Any) -> Shop:
    return Shop(spark, server, tmp_path)


def change(partition: str, position: int, table: str, row: dict[str, Any], *, end: bool) -> tuple[Any, ...]:
    return (partition, position, int(end), table, json.dumps(row), end)


def test_two_lanes_make_the_partitions_of_their_rows(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    shop.ask("ADMIN SET FRONTEND CONFIG ('max_load_initial_open_partition_number' = '100')")
    rows = []
    for partition in ("p-0", "p-1"):
        for position in range(1, 41):
            day = f"2024-{1 + position // 28:02}-{1 + position % 28:02} 12:00:00"
            key = position + 1000 * (partition == "p-1")
            rows.append(change(partition, position, "days", {"id": key, "d": day}, end=False))
            rows.append(change(partition, position, "kinds", {"id": key, "kind": f"k{position % 5}"}, end=True))
    (receipt,) = StarRocksSink(shop.options(lanes=2)).write(shop.frame(rows))
    assert receipt.rows == 160
    assert records_of(caplog, "partitions.closed") == []
    assert shop.ask("SELECT count(*), count(DISTINCT d) FROM shop.days") == [(80, 40)]
    assert shop.ask("SELECT count(*), count(DISTINCT kind) FROM shop.kinds") == [(80, 5)]
    shop.ask("ADMIN SET FRONTEND CONFIG ('max_load_initial_open_partition_number' = '32')")
    old = change("p-0", 41, "days", {"id": 1, "d": "2024-01-02 12:00:00"}, end=True)
    with pytest.raises(PartitionClosed, match=r"Table days has 40 partitions, .*open_partition_number.* is 32"):
        StarRocksSink(shop.options(lanes=2)).write(shop.frame([old]))
    (said,) = records_of(caplog, "partitions.closed")  # by the driver, before the lane
    assert "table=days what='The table has 40 partitions, and a load opens the newest 32" in said.getMessage()
