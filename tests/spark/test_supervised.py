"""`run_forever` with Spark and the emulator: restarts in one process, one block for each failure."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from starrocks_txn_sink import RestartPolicy, StarRocksSink, run_forever
from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.sink.supervisor import ExitCode
from tests.support.exactly_once_shop import SCHEMA, Shop, rows_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark

AWAY = {"operation": "begin", "action": "answer", "status": 503, "body": ""}
AT_ONCE = RestartPolicy(first=0.1, longest=0.1, most_unknown=0)


def test_a_query_is_started_again_until_starrocks_serves(shop: Shop, capfd: pytest.CaptureFixture[str]) -> None:
    shop.feed(rows_of("p-0", [1, 2]))
    shop.fault(AWAY)
    started: list[Any] = []

    def start() -> Any:
        if len(started) == 2:
            shop.fault()
        started.append(shop.start(max_attempts=1)[0])
        return started[-1]

    assert run_forever(start, policy=AT_ONCE) == ExitCode.ENDED
    assert len({query.runId for query in started}) == 3
    assert shop.written() == (4, 4)
    output = capfd.readouterr().err
    assert output.count("starrocks-txn-sink: ") == 2
    assert output.count("(transient)") == 2
    assert "Traceback" not in output


def test_rejected_rows_end_it_with_one_block_as_the_last_lines(shop: Shop, capfd: pytest.CaptureFixture[str]) -> None:
    bad = [(*row[:4], row[4].replace('"seq":0', '"seq":"x"'), row[5]) for row in rows_of("p-0", [1])]
    shop.feed(bad)
    assert run_forever(lambda: shop.start()[0], policy=AT_ONCE) == ExitCode.TERMINAL
    lines = capfd.readouterr().err.rstrip().splitlines()
    assert lines[-5].startswith(
        "starrocks-txn-sink: A value does not fit column seq of table items at source partition"
    )
    assert lines[-4].startswith("  Remedy: Correct the source or the column")
    assert lines[-1] == "  Next:   the query stays down (exit code 78)"
    assert len(lines) < 15
    assert not any("starrocks_txn_sink/1:" in line or "Traceback" in line for line in lines)


def test_what_a_stage_in_front_of_the_sink_refuses_needs_a_person(
    shop: Shop, capfd: pytest.CaptureFixture[str]
) -> None:
    shop.feed(rows_of("p-0", [1]))

    def refuse(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                raise InputError("A change has no transaction.", hint="Start behind it.", position=7)
            yield batch

    def start() -> Any:
        rows = shop.spark.readStream.schema(SCHEMA).json(str(shop.source)).mapInArrow(refuse, SCHEMA)
        writer = rows.writeStream.foreachBatch(StarRocksSink(shop.options()))
        return writer.option("checkpointLocation", str(shop.checkpoint())).trigger(availableNow=True).start()

    assert run_forever(start, policy=AT_ONCE) == ExitCode.TERMINAL
    output = capfd.readouterr().err
    assert "\nstarrocks-txn-sink: A change has no transaction. [position=7]\n  Remedy: Start behind it.\n" in output
    assert "errors/input.md (terminal)" in output


def test_a_stop_ends_a_running_query(shop: Shop) -> None:
    shop.feed(rows_of("p-0", [1]))
    stop = threading.Event()
    started: list[Any] = []

    def stop_when_idle() -> None:
        wait_until(lambda: started[-1].recentProgress and not started[-1].status["isTriggerActive"])
        stop.set()

    def start() -> Any:
        started.append(shop.start(forever=True)[0])
        threading.Thread(target=stop_when_idle, daemon=True).start()
        return started[-1]

    assert run_forever(start, stop=stop) == ExitCode.ENDED
    assert not started[0].isActive
    assert shop.written() == (2, 2)
    assert shop.open_labels() == []
