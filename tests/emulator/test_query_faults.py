"""Faults on the query port: refused, slow and replaced statements; and what it tells of its configuration."""

from __future__ import annotations

import json
import time
from typing import Any

import pymysql
import pytest

from starrocks_emulator.server import Emulator
from starrocks_emulator.settings import Limits
from tests.support.query_port import query

pytestmark = pytest.mark.emulator(limits=Limits(label_keep_max_num=77))


def query_rule(label: str, **fault: Any) -> dict[str, Any]:
    return {"operation": "query", "label": label, **fault}


def test_a_statement_is_answered_with_other_rows(server: Emulator) -> None:
    body = json.dumps({"columns": ["v"], "rows": [["3.3.1"]]})
    server.faults.replace([query_rule(r"current_version\(\)", action="answer", body=body)])
    assert query(server, "SELECT  current_version()") == [("3.3.1",)]
    assert query(server, "SELECT 1") == [(1,)]


def test_a_statement_is_refused_with_the_code_that_the_plan_names(server: Emulator) -> None:
    server.faults.replace(
        [query_rule("SHOW FRONTENDS", action="answer", status=5203, body="Access denied; you need OPERATE", times=1)]
    )
    with pytest.raises(pymysql.err.Error, match="OPERATE") as refused:
        query(server, "SHOW FRONTENDS")
    assert refused.value.args[0] == 5203
    assert query(server, "SHOW FRONTENDS")


def test_a_statement_is_slow(server: Emulator) -> None:
    server.faults.replace([query_rule("SELECT 1", action="delay", seconds=0.2)])
    start = time.monotonic()
    assert query(server, "SELECT 1") == [(1,)]
    assert time.monotonic() - start >= 0.2


def test_a_rule_without_an_operation_is_not_about_statements(server: Emulator) -> None:
    server.faults.replace([{"action": "answer", "status": 1105, "body": "no"}])
    assert query(server, "SELECT 1") == [(1,)]


def test_limits_and_grants_can_be_asked_for(server: Emulator) -> None:
    ((key, _, value, *_),) = query(server, "ADMIN SHOW FRONTEND CONFIG LIKE 'label_keep_max_num'")
    assert (key, value) == ("label_keep_max_num", "77")
    assert len(query(server, "ADMIN SHOW FRONTEND CONFIG")) > 5
    assert "'root'" in query(server, "SHOW GRANTS")[0][2]
