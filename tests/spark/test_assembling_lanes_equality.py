"""The lanes' assembler and assemble_transactions give the same rows, counts and ledger, byte by byte."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import orjson
import pytest

from starrocks_txn_sink import StarRocksSink, assemble_transactions
from starrocks_txn_sink.sources import parse_txn_events
from tests.support.assembling_shop import AssemblingShop

pytestmark = [
    pytest.mark.spark,
    pytest.mark.emulator(
        *(f"CREATE DATABASE {database}" for database in ("stage", "lanes")),
        *(
            f"CREATE TABLE {table} (id BIGINT NOT NULL, note VARCHAR(99)) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)"
            for table in ("stage.a", "stage.b", "lanes.a", "lanes.b")
        ),
    ),
]

LEVELS = {"open", "open_rows", "state_bytes", "oldest_open"}


def history(rng: random.Random) -> list[dict[str, Any]]:
    """Events of three source partitions side by side, with repeats, unfinished transactions and empty ones."""
    events: list[dict[str, Any]] = []
    at = [0, 0, 0]
    for number in range(90):
        part = rng.randrange(3)
        whole = rng.random() < 0.8
        kinds = ["BEGIN", *["DATA"] * rng.randrange(6), *(["END"] if whole else [])]
        for kind in kinds:
            at[part] += rng.randint(1, 3)
            event = {"source_partition": f"p{part}", "position": at[part], "type": kind, "txn_id": f"t{number}"}
            if kind == "DATA":
                row = {"id": rng.randrange(60), "note": rng.choice(["ä", 'q"\\', "", "\n"])}
                spelled = json.dumps(row, ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, 1]))
                event |= {"table": rng.choice("ab"), "op": rng.choice([None, "c", "U", "d", "DELETE"]), "row": spelled}
            events.append(event)
        if rng.random() < 0.1:
            events += [event for event in events[-4:] if event["source_partition"] == f"p{part}"]
    return events


@pytest.mark.deep
def test_both_ways_write_the_same(assembling: AssemblingShop) -> None:
    events = history(random.Random(5))
    for start in range(0, len(events), len(events) // 4 + 1):
        assembling.put_lines([orjson.dumps(event) for event in events[start : start + len(events) // 4 + 1]])
    query, _, lane_events = assembling.begin("lanes", database="lanes", job="job")
    assert query.awaitTermination(120)
    lines = assembling.spark.readStream.option("maxFilesPerTrigger", 1).text(str(assembling.source))
    rows = assemble_transactions(parse_txn_events(lines, source_partition=None, position=None))
    writer = rows.writeStream.foreachBatch(StarRocksSink(assembling.options(database="stage", job="job")))
    staged = writer.option("checkpointLocation", str(assembling.checkpoint("stage"))).trigger(availableNow=True).start()
    assert staged.awaitTermination(120)

    for table in ("a", "b"):
        lanes, stage = (
            assembling.ask(f"SELECT id, note FROM {name}.{table} ORDER BY id") for name in ("lanes", "stage")
        )
        assert lanes == stage
        assert len(lanes) > 10
    ledger = (
        "SELECT name, position, batch, row_count, digest FROM {}._starrocks_txn_sink_ledger WHERE kind = 'position'"
    )
    assert sorted(assembling.ask(ledger.format("lanes"))) == sorted(assembling.ask(ledger.format("stage")))
    lane_counts: Counter[str] = Counter()
    for event in lane_events:
        if event.name == "assembler.counted":
            lane_counts.update({name: count for name, count in event.fields["counts"].items() if name not in LEVELS})
    stage_counts: Counter[str] = Counter()
    for progress in staged.recentProgress:
        if progress.numInputRows:
            counts = progress.observedMetrics["assemble_transactions"].asDict()
            stage_counts.update({name: count for name, count in counts.items() if name not in LEVELS})
    assert +lane_counts == +stage_counts
    assert lane_counts["abandoned"]
    assert lane_counts["repeats"]
