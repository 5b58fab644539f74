"""Columns that rows leave out: the server would keep NULL in place of their DEFAULT (docs/reference/values.md)."""

from __future__ import annotations

import json
import uuid
from datetime import datetime, timedelta, timezone

import pytest
from pyspark.sql import SparkSession

from starrocks_emulator.server import Emulator
from starrocks_txn_sink import SinkOptions, StarRocksSink
from tests.support.query_port import query
from tests.support.servers import place_of

pytestmark = [
    pytest.mark.spark,
    pytest.mark.emulator(
        "CREATE TABLE shop.people (id BIGINT NOT NULL, kind VARCHAR(8) NOT NULL DEFAULT 'new', score INT DEFAULT '7',"
        " at DATETIME DEFAULT CURRENT_TIMESTAMP, token VARCHAR(36) DEFAULT (uuid()), number BIGINT NOT NULL"
        " AUTO_INCREMENT, note VARCHAR(9)) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)"
    ),
]


def test_each_column_gets_its_default(spark: SparkSession, server: Emulator) -> None:
    rows = [{"id": 1}, {"id": 2, "kind": "old", "score": None, "at": None, "token": None, "note": "a"}, {"id": 3}]
    frame = spark.createDataFrame(
        [("p", number, 0, True, "people", json.dumps(row)) for number, row in enumerate(rows)],
        "source_partition string, position long, seq long, transaction_end boolean, table string, row string",
    )
    before = datetime.now(timezone.utc) - timedelta(seconds=1)
    StarRocksSink(SinkOptions(**place_of(server), job="test")).write(frame)
    after = datetime.now(timezone.utc)

    first, second, third = query(server, "SELECT kind, score, note, at, token, number FROM shop.people ORDER BY id")
    assert tuple(first[:3]) == tuple(third[:3]) == ("new", 7, None)
    assert tuple(second[:5]) == ("old", None, "a", None, None)
    for row in (first, third):
        assert before <= row[3].replace(tzinfo=timezone.utc) <= after
    assert uuid.UUID(first[4]) != uuid.UUID(third[4])
    assert len({row[5] for row in (first, second, third)}) == 3
