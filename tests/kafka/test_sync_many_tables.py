"""Fifty tables of one connector: `init` writes the file, `spark-submit` runs it, StarRocks has the source's rows."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from starrocks_txn_ops import cli
from tests.kafka.broker import Broker
from tests.support.connect_schema import field
from tests.support.debezium_topics import Message, send, transaction
from tests.support.quick_start import Warehouse

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
TABLES = [f"t{number:02}" for number in range(50)]
FIELDS = {
    "id": field("int64"),
    "value": field("int32"),
    "name": field("string", source_type="VARCHAR", source_length=40),
}
RUN = "import runpy\n\nrunpy.run_module('starrocks_txn_sink', run_name='__main__')\n"


def fed(servers: str, rng: random.Random) -> dict[str, dict[int, tuple[int, str]]]:
    """Send source transactions over many tables; returns the rows of the source."""
    source: dict[str, dict[int, tuple[int, str]]] = {table: {} for table in TABLES}
    messages: list[Message] = []
    for number in range(1, 121):
        rows: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
        for table in rng.sample(TABLES, 5) if number > 50 else [TABLES[number - 1], *rng.sample(TABLES, 2)]:
            id_, value, name = rng.randrange(8), rng.randrange(1000), f"é{rng.randrange(100)}"
            rows.append((table, FIELDS, {"id": id_, "value": value, "name": name}))
            source[table][id_] = (value, name)
        messages += transaction(number, *rows, prefix="many")
    send(servers, messages)
    return source


def test_fifty_tables_from_one_file_by_spark_submit(
    broker: Broker, warehouse: Warehouse, spark_kafka: str, tmp_path: Path
) -> None:
    prefix = "many"
    broker.create({f"{prefix}.transaction": 1, **{f"{prefix}.public.{table}": 1 for table in TABLES}})
    source = fed(broker.servers, random.Random(5))
    file = tmp_path / "many.toml"
    assert cli.main(["init", "--kafka", broker.servers, "--prefix", prefix, "--output", str(file)]) == 0
    warehouse.run("CREATE DATABASE many;")
    text = warehouse.placed(file.read_text(encoding="utf-8"))
    assert "[query]" in text
    file.write_text(text.replace("[query]", "[query]\nuntil_end = true"), encoding="utf-8")
    (tmp_path / "run.py").write_text(RUN, encoding="utf-8")
    submit = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[2]", "--jars", spark_kafka]
    environment = os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        **warehouse.environment,
    }
    command = [*submit, "run.py", "sync", str(file)]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False, timeout=400)
    assert ended.returncode == 0, ended.stderr.decode(errors="replace")[-4000:]
    for table in TABLES:
        rows = warehouse.ask(f"SELECT id, value, name FROM many.{table} ORDER BY id")
        assert rows == [(id_, *values) for id_, values in sorted(source[table].items())], table
    count = "SELECT count(*) FROM information_schema.tables WHERE TABLE_SCHEMA = 'many' AND TABLE_NAME LIKE 't__'"
    assert warehouse.ask(count) == [(50,)]
