"""A search for bad rows on a server that is in trouble of its own: no good source transaction becomes dead letters."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from starrocks_emulator.server import Emulator
from starrocks_txn_sink.errors import CommitFailed
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol.dead_letters import DEAD_LETTER_TABLE
from tests.support.query_port import query
from tests.support.threaded_lanes import ThreadedJob, Transaction

TABLES = ("orders", "items", "places")
FIRST_BAD = 40_000
"""Such an id does not fit a SMALLINT. The server alone refuses it, because the sink is told not to look at values."""

DDL = [f"CREATE TABLE shop.{name} (id SMALLINT NOT NULL) PRIMARY KEY (id) DISTRIBUTED BY HASH (id)" for name in TABLES]
pytestmark = pytest.mark.emulator(*DDL)

NO_ROWS = json.dumps(
    {
        "Status": "FAILED",
        "Message": "STREAM_LOAD_TASK:1, label{l}, error_msg{cancel stream task for exception: No rows were imported"
        " from upstream. Possible causes: 1) all rows were filtered by load conditions}",
    }
)
REFUSED = {"operation": "commit", "action": "answer", "body": NO_ROWS}
LOST = {"operation": "commit", "action": "lose_backends"}
SHOWN = {"operation": "query", "action": "answer", "label": "SHOW ALL STREAM LOAD"}
DENIED = {**SHOWN, "status": 1064, "body": "There is no label named l in db shop"}
EMPTY = {**SHOWN, "body": json.dumps({"columns": ["Label", "TableName", "NumRowsAbNormal"], "rows": []})}
CLOSED = {**SHOWN, "status": 2013, "body": "Lost connection"}


@dataclass
class Shop:
    """A job of two lanes, of whose source transactions the numbers `bad` have a row that the server refuses."""

    server: Emulator
    bad: tuple[int, ...] = (3, 17)
    count: int = 24

    def transactions(self) -> list[list[Transaction]]:
        rows = [
            {table: [number if table != "items" or number not in self.bad else FIRST_BAD + number] for table in TABLES}
            for number in range(self.count)
        ]
        return [list(rows[: self.count // 2]), list(rows[self.count // 2 :])]

    def write(self, **options: Any) -> None:
        settings: dict[str, Any] = {"database": "shop", "job": "shop", "lanes": 2, "on_bad_rows": "quarantine"}
        settings |= {"check_values": False, **options}
        options_of_job = SinkOptions(load_url=self.server.load_url, query_url=self.server.query_url, **settings)
        job = ThreadedJob(options_of_job, 2)
        job.write(self.transactions())

    def check(self) -> None:
        good = [(number,) for number in range(self.count) if number not in self.bad]
        for table in TABLES:
            assert sorted(query(self.server, f"SELECT id FROM shop.{table}")) == good, table
        letters = query(self.server, f"SELECT content FROM shop.{DEAD_LETTER_TABLE}")
        assert sorted({json.loads(content)["id"] % FIRST_BAD for (content,) in letters}) == sorted(self.bad)
        assert len(letters) == len(self.bad) * len(TABLES)


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param([], id="no trouble"),
        pytest.param([{**REFUSED, "every": 2}], id="each second commit is refused"),
        pytest.param([{**LOST, "every": 3}], id="backends die before each third commit"),
        pytest.param([{**DENIED, "every": 2}], id="the question is refused for want of a privilege"),
        pytest.param([{**EMPTY, "every": 2}], id="the label has no row"),
        pytest.param([{**CLOSED, "every": 3}, {**REFUSED, "every": 4}], id="no answer, and refused commits"),
    ],
)
def test_only_bad_source_transactions_become_dead_letters(server: Emulator, plan: list[dict[str, Any]]) -> None:
    shop = Shop(server)
    server.faults.replace(plan)
    shop.write(max_attempts=10)
    server.faults.replace([])
    shop.check()


def test_without_bad_rows_refused_commits_leave_no_dead_letter(server: Emulator) -> None:
    shop = Shop(server, bad=())
    server.faults.replace([{**REFUSED, "times": 3}, {**LOST, "nth": 4}])
    shop.write(max_attempts=10)
    shop.check()


def test_a_server_that_refuses_each_commit_fails_the_write_and_sets_nothing_aside(server: Emulator) -> None:
    shop = Shop(server, bad=(), count=2)
    server.faults.replace([REFUSED])
    with pytest.raises(CommitFailed):
        shop.write(max_attempts=2)
    server.faults.replace([])
    shop.write()
    shop.check()
