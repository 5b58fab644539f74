"""The page for Databricks' pipelines, with a double of their two decorators: the frame of a flow goes to the sink."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import orjson
import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.support.exactly_once_shop import Shop
from tests.support.quick_start import blocks

pytestmark = pytest.mark.spark

PAGE, EVENTS = "docs/start/databricks.md", "docs/start/kafka.md"
KAFKA = 'spark.readStream.format("kafka").options(**options, maxOffsetsPerTrigger=100_000).load()'
FRAME = "value string, topic string, partition int, offset long, timestamp timestamp"


class Pipelines(ModuleType):
    """The decorators as Databricks' documentation describes them: sinks by name, and flows into them."""

    def __init__(self) -> None:
        super().__init__("pyspark.pipelines")
        self.sinks: dict[str, Callable[[DataFrame, int], None]] = {}
        self.flows: list[tuple[str, str, Callable[[], DataFrame]]] = []

    def foreach_batch_sink(self, name: str) -> Callable[[Any], Any]:
        def register(function: Any) -> Any:
            self.sinks[name] = function
            return function

        return register

    def append_flow(self, target: str, name: str) -> Callable[[Any], Any]:
        def register(function: Any) -> Any:
            self.flows.append((target, name, function))
            return function

        return register

    def run(self, checkpoints: Path) -> None:
        """An update of the pipeline."""
        for target, name, flow in self.flows:
            writer = flow().writeStream.foreachBatch(self.sinks[target]).queryName(name)
            query = writer.option("checkpointLocation", str(checkpoints / name)).trigger(availableNow=True).start()
            assert query.awaitTermination(240)


@pytest.fixture
def pipelines(monkeypatch: pytest.MonkeyPatch) -> Pipelines:
    double = Pipelines()
    monkeypatch.setitem(sys.modules, "pyspark.pipelines", double)
    monkeypatch.setattr(pyspark, "pipelines", double, raising=False)
    return double


def test_the_page_runs(shop: Shop, pipelines: Pipelines, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    (program,), (events,) = blocks(PAGE, "python"), blocks(EVENTS, "json")
    for statement in blocks(EVENTS, "sql")[0].split(";")[1:]:
        if statement.strip():
            shop.ask(statement)
    folder = shop.folder / "topic"
    folder.mkdir()
    source = f"spark.readStream.schema({FRAME!r}).json({str(folder)!r})"
    replacements = {
        "http://fe:8030": shop.server.load_url,
        "mysql://fe:9030": shop.server.query_url,
        '        username="sink",\n        password_environment="STARROCKS_PASSWORD",\n': "",
        "/Volumes/main/shop/state": str(shop.folder / "state"),
        KAFKA: source,
    }
    for printed, replacement in replacements.items():
        assert printed in program, printed
        program = program.replace(printed, replacement)
    monkeypatch.setattr(SparkSession, "active", classmethod(lambda _: spark), raising=False)
    exec(compile(program, PAGE, "exec"), {"__name__": "page"})

    def send(number: int, first: int, *texts: str) -> None:
        lines = [{"value": text, "topic": "t", "partition": 0, "offset": first + n} for n, text in enumerate(texts)]
        (folder / f"{number}.json").write_bytes(b"\n".join(map(orjson.dumps, lines)))

    names = "SELECT order_id, customer FROM shop.orders ORDER BY order_id"
    send(1, 0, *events.splitlines())
    pipelines.run(shop.folder / "first")
    assert shop.ask(names) == [(1, "Ann")]
    send(2, len(events.splitlines()), '{"type": "END", "txn_id": "3"}')
    pipelines.run(shop.folder / "first")
    assert shop.ask(names) == [(1, "Ann"), (2, "Bob")]
    shop.ask("TRUNCATE TABLE shop.orders")
    pipelines.run(shop.folder / "refreshed")  # under the same job: what the ledger has is left out
    assert shop.ask(names) == []
    exec(compile(program.replace('"shop-1"', '"shop-2"'), PAGE, "exec"), {"__name__": "page"})
    del pipelines.flows[0]
    pipelines.run(shop.folder / "again")
    assert shop.ask(names) == [(1, "Ann"), (2, "Bob")]
