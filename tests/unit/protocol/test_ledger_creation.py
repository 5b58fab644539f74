"""Whether the ledger's table is created, and what is said when it is not there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from starrocks_emulator.server import Emulator
from starrocks_emulator.settings import Limits
from starrocks_txn_sink import SinkOptions
from starrocks_txn_sink.errors import NoBackend, QueryRefused
from starrocks_txn_sink.protocol.ledger import create_table
from starrocks_txn_sink.sink.session import open_session
from tests.support.query_port import query

pytestmark = pytest.mark.emulator(backends=3)
few_backends = pytest.mark.emulator(limits=Limits(default_replication_num=3))

DOCS = Path(__file__).parents[3] / "docs" / "guides" / "exactly-once.md"


def start(server: Emulator, **changes: object) -> str:
    options = SinkOptions(load_url=server.load_url, query_url=server.query_url, database="shop", **changes)  # type: ignore[arg-type]
    return open_session(options, "run", "job", "checkpoint").token


def tables(server: Emulator) -> list[object]:
    return [name for (name,) in query(server, "SHOW TABLES FROM shop")]


def test_it_is_created_on_first_use_and_used_again(server: Emulator) -> None:
    assert start(server)
    assert tables(server) == ["_starrocks_txn_sink_ledger"]
    assert start(server)


def test_creation_can_be_forbidden_and_then_the_error_says_what_to_do(server: Emulator) -> None:
    with pytest.raises(QueryRefused, match="create the ledger's table by hand"):
        start(server, ledger_create=False)
    assert tables(server) == []


def test_a_table_that_was_made_with_the_documented_statement_will_do(server: Emulator) -> None:
    documented = re.search(r"```sql\n(CREATE TABLE.*?)\n```", DOCS.read_text(), re.DOTALL)
    assert documented is not None
    statement = create_table("shop", 3)
    assert re.sub(r"\s", "", documented[1]) == re.sub(r"\s", "", statement)
    query(server, documented[1])
    assert start(server, ledger_create=False)


def replicas(server: Emulator) -> str:
    ((_, ddl),) = query(server, "SHOW CREATE TABLE shop._starrocks_txn_sink_ledger")
    return "".join(re.findall(r'"replication_num" = "(\d)"', ddl))


@pytest.mark.parametrize(
    "backends",
    [
        pytest.param(n, marks=pytest.mark.emulator(backends=n, limits=Limits(default_replication_num=3)))
        for n in (1, 2, 3)
    ],
)
def test_a_cluster_of_few_backends_gets_one_replica_on_each(server: Emulator, backends: int) -> None:
    """Wire contract 10.8: without a number the server takes default_replication_num."""
    assert start(server, receipts_log=True, on_bad_rows="quarantine")
    assert replicas(server) == str(backends)
    assert len(tables(server)) == 3


BACKENDS = {"columns": ["BackendId", "IP", "Alive"], "rows": [["1", "be1", "true"], ["2", "be2", "false"]]}


@few_backends
@pytest.mark.parametrize(
    ("nodes", "changes", "advice"),
    [
        pytest.param(BACKENDS, {}, "1 of 2 backends are alive.*Start more backends, or set ledger_replication=1"),
        pytest.param(None, {"ledger_replication": 3}, "3 replicas, and 1 of 1 backends.*set ledger_replication=1"),
    ],
)
def test_too_few_backends_are_named_with_the_option(
    server: Emulator, nodes: object, changes: dict[str, object], advice: str
) -> None:
    """A cluster of which some backends are down gets no weaker ledger without a word."""
    rule = {"operation": "query", "label": "^SHOW BACKENDS", "action": "answer", "body": json.dumps(nodes)}
    server.faults.replace({"rules": [rule] if nodes else []})
    with pytest.raises(QueryRefused, match=advice):
        start(server, **changes)
    assert tables(server) == []


@few_backends
def test_a_cluster_whose_backends_are_all_down_is_waited_for(server: Emulator) -> None:
    nodes = {"columns": ["BackendId", "IP", "Alive"], "rows": [["1", "be1", "false"], ["2", "be2", "false"]]}
    rule = {"operation": "query", "label": "^SHOW BACKENDS", "action": "answer", "body": json.dumps(nodes)}
    server.faults.replace({"rules": [rule]})
    with pytest.raises(NoBackend, match="None of the 2 backends is alive"):
        start(server)


@few_backends
def test_a_user_who_may_not_ask_hears_the_servers_refusal(server: Emulator) -> None:
    denied = {"operation": "query", "label": "^SHOW BACKENDS", "action": "answer", "status": 5203, "body": "denied"}
    server.faults.replace({"rules": [denied]})
    with pytest.raises(QueryRefused, match=r"1064.*set ledger_replication"):
        start(server)


def test_a_user_who_may_not_create_it_reads_what_to_do(server: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("starrocks_txn_sink.sql.connection.create_table", lambda *_: "CREATE TABLE")
    with pytest.raises(QueryRefused, match="set ledger_create=False"):
        start(server)
