"""The quick start of declarative pipelines runs as printed: the command ends well, and a full refresh is refused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from starrocks_txn_sink.spark_version import SPARK
from tests.kafka.broker import Broker
from tests.kafka.test_quick_start import send
from tests.support.quick_start import ROOT, Warehouse, blocks

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.skipif(SPARK < (4, 3), reason="the page is for Spark 4.3"),
]
PAGE, EVENTS = "docs/start/pipelines.md", "docs/start/kafka.md"
_CONF = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "700m",
    "spark.python.authenticate.socketTimeout": "120s",
    "spark.ui.enabled": "false",
}
TOPIC = "pipeline-events"


def test_the_quick_start(broker: Broker, warehouse: Warehouse, spark_kafka: str, tmp_path: Path) -> None:
    (spec,), (program,), (select,), (table,) = (blocks(PAGE, kind) for kind in ("yaml", "python", "sql", "text"))
    tables, (events,) = blocks(EVENTS, "sql")[0], blocks(EVENTS, "json")
    home = tmp_path / "home"
    (home / "transformations").mkdir(parents=True)
    assert "/data/pipelines/shop" in spec
    (home / "spark-pipeline.yml").write_text(spec.replace("/data/pipelines/shop", f"{home}/storage"), encoding="utf-8")
    broker.create({TOPIC: 1})  # other tests of this broker have the page's topic
    send(broker.servers, TOPIC, events.splitlines())

    def run(*words: str) -> tuple[int, str]:
        command = [str(Path(sys.executable).parent / "spark-pipelines"), "run", *words]
        conf = " ".join(f"--conf {name}={value}" for name, value in _CONF.items())
        settings = {
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": f"--jars {spark_kafka} {conf} pyspark-shell",
            "PYTHONPATH": str(ROOT),
            **warehouse.environment,
        }
        process = subprocess.run(
            command, cwd=home, env=os.environ | settings, stdout=-1, stderr=-2, text=True, timeout=240, check=False
        )
        return process.returncode, process.stdout

    warehouse.run(tables)
    program = warehouse.placed(program)
    for printed, address in {"shop-events": TOPIC, "broker:9092": broker.servers}.items():
        assert printed in program
        program = program.replace(printed, address)
    file = home / "transformations" / "shop.py"
    file.write_text(program, encoding="utf-8")
    code, output = run()
    assert (code, "Run is COMPLETED" in output) == (0, True), output[-6000:]
    assert warehouse.shows(select, table)()
    send(broker.servers, TOPIC, ['{"type": "END", "txn_id": "3"}'])
    assert run()[0] == 0
    orders = [(1, "Ann"), (2, "Bob")]
    names = "SELECT order_id, customer FROM shop.orders ORDER BY order_id"
    assert warehouse.ask(names) == orders
    code, output = run("--full-refresh-all")
    assert code != 0
    assert re.search(r"a full refresh, or a\slost checkpoint.*new\s`job`", output, re.DOTALL), output[-6000:]
    warehouse.run("TRUNCATE TABLE shop.orders; TRUNCATE TABLE shop.order_items")
    file.write_text(program.replace('"shop-1"', '"shop-2"'), encoding="utf-8")
    code, output = run()
    assert (code, warehouse.ask(names)) == (0, orders), output[-6000:]
