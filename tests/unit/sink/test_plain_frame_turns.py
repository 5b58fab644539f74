"""Tasks of the data source take turns at their tables, as lanes do: two first loads at once would end the label."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from starrocks_emulator.server import Emulator
from starrocks_txn_sink.coordinator.model import LaneShare
from starrocks_txn_sink.sink.plain_frames import LaneMessage, PlainFrameWriter
from starrocks_txn_sink.writer.lane_try import SparkLane
from starrocks_txn_sink.writer.messages import of_kind
from starrocks_txn_sink.writer.worker import Attempt
from tests.support.query_port import query
from tests.support.servers import place_of

TASKS = 4
READY = T.StructType([T.StructField("table", T.StringType()), T.StructField("row", T.StringType())])


@pytest.mark.emulator("CREATE TABLE shop.plain (id BIGINT NOT NULL) DUPLICATE KEY(id)", planning_seconds=0.3)
def test_first_loads_of_a_frames_tasks_do_not_meet(server: Emulator) -> None:
    writer, together = PlainFrameWriter.begin(READY, place_of(server)), threading.Barrier(TASKS)

    def load(lane: int) -> LaneMessage:
        batch = pa.RecordBatch.from_pydict({"table": ["plain"], "row": [f'{{"id":{lane}}}']})
        rows = writer._lane_rows(iter([batch]), lane)
        together.wait(20)
        return LaneMessage(lane, tuple(SparkLane(writer.task).run(rows, Attempt(lane, lane, False))))

    with ThreadPoolExecutor(TASKS) as pool:
        sent = [*pool.map(load, range(TASKS))]
    shares = [share for message in sent for share in of_kind(message.messages, LaneShare)]
    assert [receipt.retries for share in shares for receipt in share.loaded] == [0] * TASKS
    writer.commit([*sent])
    assert query(server, "SELECT count(*), count(DISTINCT id) FROM shop.plain") == [(TASKS, TASKS)]
