"""Rows move between partitions of a table whose declared key has a column that the source's key lacks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from starrocks_txn_sink import CanalAssembly, TableOptions
from tests.support.canal_feed import flat
from tests.support.debezium_feed import change, postgres
from tests.support.debezium_shop import Changes, DebeziumShop, begin, end

pytestmark = pytest.mark.spark

KEYS = {"moves": TableOptions(keys=["id", "day"])}
FIRST, SECOND = "2024-01-31", "2024-02-01"


@pytest.fixture
def shop(debezium: DebeziumShop) -> DebeziumShop:
    debezium.ask(
        "CREATE TABLE shop.moves (id INT NOT NULL, day DATE NOT NULL, n INT, note STRING) PRIMARY KEY(id, day)"
        " PARTITION BY date_trunc('day', day) DISTRIBUTED BY HASH(id)"
    )
    return debezium


def moves(shop: DebeziumShop) -> list[tuple[int, str, int, str]]:
    rows = shop.ask("SELECT id, day, n, note FROM shop.moves ORDER BY id, day")
    return [(int(number), str(day), int(n), note) for number, day, n, note in rows]


def of(number: int, day: str, n: int, **more: Any) -> Changes:
    return {"id": number, "day": day, "n": n, "note": "x", **more}


def row(order: int, after: Any, before: Any, op: str, *, whole: bool) -> Changes:
    lsn = 5000 + order
    value = change(postgres("moves", lsn), f"5:{lsn}" if whole else None, order if whole else None, after, before, op)
    return {**value, "transaction": {**value["transaction"], "data_collection_order": order}} if whole else value


@pytest.mark.parametrize("whole", [True, False])
def test_the_former_row_goes_once_over_replays(shop: DebeziumShop, whole: bool) -> None:
    left_out = "__debezium_unavailable_value"
    changes = [
        row(1, of(1, FIRST, 1), None, "c", whole=whole),
        row(2, of(2, FIRST, 1), None, "c", whole=whole),
        row(3, of(1, SECOND, 2, note=left_out), of(1, FIRST, 1), "u", whole=whole),
        row(4, of(2, FIRST, 3), of(2, FIRST, 1), "u", whole=whole),
        row(5, of(1, FIRST, 4), of(1, SECOND, 2), "u", whole=whole),
        row(6, None, of(2, FIRST, 3), "d", whole=whole),
    ]
    ended = {**end(5, 0), "event_count": 6, "data_collections": [{"data_collection": "public.moves", "event_count": 6}]}
    files = [[begin(5), *changes[:3]], [*changes[3:], ended]] if whole else [changes[:3], changes[3:]]
    settings: Any = {"sink_tables": KEYS} | ({} if whole else {"transactions": "none"})
    for file in files:
        shop.put(*file, key={"id": 1})
    shop.go(**settings)
    assert moves(shop) == [(1, FIRST, 4, "x")]
    for batch in (1, 0):
        shop.forget_commit(batch)
    shop.go(**settings)
    assert moves(shop) == [(1, FIRST, 4, "x")]


def test_without_its_former_row_nothing_of_the_micro_batch_is_written(shop: DebeziumShop) -> None:
    rows = [row(1, of(1, FIRST, 1), None, "c", whole=False), row(2, of(1, SECOND, 2), None, "u", whole=False)]
    shop.put(*rows, key={"id": 1})
    with pytest.raises(
        StreamingQueryException, match=r"moves does not say what day was before.*partition=0 offset=1001"
    ):
        shop.go(sink_tables=KEYS, transactions="none")
    assert moves(shop) == []


def test_rows_of_canal_move_by_their_old_values(shop: DebeziumShop) -> None:
    texts: list[dict[str, Any]] = [
        {name: str(value) for name, value in of(1, day, n).items()} for day, n in ((FIRST, 1), (SECOND, 2))
    ]
    types: Any = {"mysqlType": {"id": "int", "day": "date", "n": "int", "note": "text"}, "table": "moves"}
    values = flat("INSERT", texts[:1], **types), flat("UPDATE", texts[1:], [{"day": FIRST, "n": "1"}], **types)
    shop.assembly = CanalAssembly
    shop.put_texts("canal", *((None, json.dumps(value)) for value in values))
    shop.go(sink_tables=KEYS)
    assert moves(shop) == [(1, SECOND, 2, "x")]
