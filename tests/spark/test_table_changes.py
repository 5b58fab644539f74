"""The page of Delta's feed and Iceberg's changelog, with frames of their shape in place of the formats."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from starrocks_emulator.server import Emulator
from starrocks_txn_sink.errors import SourceChanged
from tests.support.query_port import query
from tests.support.quick_start import blocks
from tests.support.servers import program_for

pytestmark = pytest.mark.spark

TABLE = "CREATE TABLE shop.customers (id BIGINT NOT NULL, name VARCHAR(64)) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)"
READ_DELTA, WRITE_DELTA, READ_ICEBERG, WRITE_ICEBERG = blocks("docs/guides/lakehouse.md", "python")
FEED = "id BIGINT, name STRING, _change_type STRING, _commit_version BIGINT, _commit_timestamp TIMESTAMP"
VERSIONS: list[list[tuple[int, str, str]]] = [
    [(1, "Ann", "insert"), (2, "Bob", "insert")],
    [(1, "Ann", "update_preimage"), (1, "Anne", "update_postimage")],
    [(2, "Bob", "delete"), (2, "Bea", "insert"), (3, "Cid", "insert")],  # a MERGE, in any order
    [(3, "Cid", "update_preimage"), (7, "Cid", "update_postimage")],
]


def put_version(folder: Path, version: int) -> None:
    """A file with the changes of one commit, the last one first."""
    rows = [
        {"id": id, "name": name, "_change_type": kind, "_commit_version": version, "_commit_timestamp": 1700000000}
        for id, name, kind in reversed(VERSIONS[version])
    ]
    file = folder / f"{version}.json"
    file.write_text("\n".join(map(json.dumps, rows)))
    os.utime(file, (version + 1, version + 1))


@pytest.mark.emulator(TABLE)
def test_each_commit_of_a_delta_table_is_written_whole_and_once(
    spark: SparkSession, server: Emulator, tmp_path: Path
) -> None:
    assert "readChangeFeed" in READ_DELTA
    folder = tmp_path / "feed"
    folder.mkdir()
    names: dict[str, Any] = {"load_url": server.load_url, "query_url": server.query_url}
    names["checkpoint"] = str(tmp_path / "checkpoint")

    def run() -> list[tuple[Any, ...]]:
        names["changes"] = spark.readStream.schema(FEED).option("maxFilesPerTrigger", 1).json(str(folder))
        program = program_for(server, WRITE_DELTA)
        exec(program.replace(".start()", ".trigger(availableNow=True).start()"), names)
        assert names["query"].awaitTermination(120)
        return query(server, "SELECT id, name FROM shop.customers ORDER BY id")

    put_version(folder, 0)
    put_version(folder, 1)
    assert run() == [(1, "Anne"), (2, "Bob")]
    (tmp_path / "checkpoint" / "commits" / "1").unlink()
    assert run() == [(1, "Anne"), (2, "Bob")]
    put_version(folder, 2)
    put_version(folder, 3)
    assert run() == [(1, "Anne"), (2, "Bea"), (7, "Cid")]


@pytest.mark.deep
@pytest.mark.emulator(TABLE)
def test_a_range_of_icebergs_snapshots_is_written_once(spark: SparkSession, server: Emulator) -> None:
    assert "create_changelog_view" in READ_ICEBERG
    names: dict[str, Any] = {"load_url": server.load_url, "query_url": server.query_url}
    exec(WRITE_DELTA.split("kinds")[0], names)  # the imports
    columns = "id BIGINT, name STRING, _change_type STRING, _change_ordinal INT, _commit_snapshot_id BIGINT"

    def write(number: int, *rows: tuple[int, str, str, int]) -> list[tuple[Any, ...]]:
        names["number"] = number
        names["changes"] = spark.createDataFrame([(*row, 5390529835796506035 + row[3]) for row in rows], columns)
        exec(program_for(server, WRITE_ICEBERG), names)
        return query(server, "SELECT id, name FROM shop.customers ORDER BY id")

    first = [(1, "Alice", "INSERT", 0), (3, "Robert", "INSERT", 0), (1, "Alice", "DELETE", 1)]
    assert write(100, *first) == [(3, "Robert")]
    later = [(3, "Dan", "UPDATE_AFTER", 2), (3, "Robert", "UPDATE_BEFORE", 2)]
    assert write(101, *later) == [(3, "Dan")]
    assert write(101, *later) == [(3, "Dan")]
    with pytest.raises(SourceChanged):
        write(101, *first)  # of another range
    assert write(102, *first, *later) == [(3, "Dan")]
