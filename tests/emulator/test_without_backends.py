"""What a frontend answers while no backend is alive (wire contract 10.14)."""

from __future__ import annotations

from collections.abc import Callable

import pymysql
import pytest

from starrocks_emulator.server import Emulator
from tests.support.query_port import query

T = "CREATE TABLE shop.t (id BIGINT) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)"
pytestmark = pytest.mark.emulator(T, "INSERT INTO shop.t VALUES (1)", backends=2)


@pytest.fixture
def refusal(server: Emulator) -> Callable[[str], tuple[int, str]]:
    server.end_backends()

    def refused(sql: str) -> tuple[int, str]:
        with pytest.raises(pymysql.err.Error) as failure:
            query(server, sql)
        number, text = failure.value.args
        return int(number), str(text)

    return refused


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT current_version()",
        "SELECT count(*) FROM shop.t",
        "SELECT LABEL FROM information_schema.loads",
        "SELECT TABLE_NAME FROM information_schema.tables",
    ],
)
def test_a_query_of_a_relation_finds_no_backend(refusal: Callable[[str], tuple[int, str]], sql: str) -> None:
    dead = "[127.0.0.1 alive: false inBlacklist: true] "
    text = f"Backend node not found. Check if any backend node is down.backend: {dead}{dead}"
    assert refusal(sql) == (1064, text)


@pytest.mark.parametrize("sql", ["INSERT INTO shop.t VALUES (2)", "DELETE FROM shop.t WHERE id = 1"])
def test_a_change_of_rows_finds_no_replica(refusal: Callable[[str], tuple[int, str]], sql: str) -> None:
    number, text = refusal(sql)
    assert (number, "Tablet lost replicas" in text, "BeReplicaSize:0" in text) == (1064, True, True)


def test_a_table_has_no_backend_to_lie_on(refusal: Callable[[str], tuple[int, str]]) -> None:
    number, text = refusal(T.replace("shop.t", "shop.u"))
    assert (number, "Current available backends: []" in text) == (1064, True)


def test_a_frontend_answers_alone_what_it_knows(server: Emulator) -> None:
    version = query(server, "SELECT current_version()")
    server.end_backends()
    assert query(server, "SELECT @@version_comment") == version
    assert query(server, "SELECT 1") == [(1,)]
    assert query(server, "SHOW FRONTENDS")
    assert query(server, "SHOW CREATE TABLE shop.t")
    assert [row[8] for row in query(server, "SHOW BACKENDS")] == ["false", "false"]
    server.start_backends()
    assert [row[8] for row in query(server, "SHOW BACKENDS")] == ["true", "true"]
    assert query(server, "SELECT count(*) FROM shop.t") == [(1,)]
