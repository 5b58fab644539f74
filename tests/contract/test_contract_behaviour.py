"""What a real server did with whole transactions (wire contract 4, 5): the emulator of its generation does the same.

`recordings/behaviour-4.1.1.json` has scenes of `tables` (columns, key, partitions, buckets) and `steps`: `loads` that
go into one transaction (table, body, headers besides the sink's), what its last request `said`, how many rows of the
last table were `filtered` (-1: the server does not know), the first `reason` of that table's log, and `rows` of
statements afterwards. A body is a text, bytes (`hex`), or `rows` that are written alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from starrocks_emulator.server import Emulator
from starrocks_emulator.settings import Settings
from tests.support.contract_client import Client, Server, fresh
from tests.support.manual_clock import ManualClock
from tests.support.recordings import FOLDER, read

SCENES: list[dict[str, Any]] = read(FOLDER / "behaviour-4.1.1.json")["scenes"]
SENT = {
    "strip_outer_array": "true",
    "ignore_json_size": "true",
    "timeout": "600",
    "strict_mode": "true",
    "Expect": "100-continue",
}
"""Headers of a load that the sink sends."""

_CAUSE = re.compile(r"exception: (.*?)(?:\. Possible causes.*|, tracking_url: .*)?\}$")
Step = Mapping[str, Any]


@pytest.mark.usefixtures("generation_b")
@pytest.mark.parametrize(
    "scene",
    [pytest.param(scene, id=scene["scene"], marks=[pytest.mark.deep] if scene.get("deep") else []) for scene in SCENES],
)
def test_transactions_end_as_on_the_recorded_server(client: Client, scene: Mapping[str, Any]) -> None:
    """Wire contract 4.4, 4.7, 4.9, 4.17, 5.3, 5.4, 5.6, 5.8 [R]."""
    tables = {name: _table(client, *words) for name, words in scene["tables"].items()}
    for step in scene["steps"]:
        expected = {name: step[name] for name in ("said", "filtered", "reason", "rows") if name in step}
        assert _outcome(client, tables, step) == expected, step.get("name", step.get("loads"))


def _table(client: Client, columns: str, key: str, partition: str = "", buckets: int = 1) -> str:
    name = fresh("t")
    client.server.sql(
        f"CREATE TABLE {client.server.database}.{name} ({columns}) {key} {partition} DISTRIBUTED BY HASH(k) "
        f'BUCKETS {buckets} PROPERTIES ("replication_num" = "1")'
    )
    return name


def _outcome(client: Client, tables: Mapping[str, str], step: Step) -> dict[str, Any]:
    """What a step's transaction and the questions after it give; only what there is to say."""
    found: dict[str, Any] = {}
    if "loads" in step:
        label = client.begin()
        found["said"] = _said(client, label, tables, step)
        table = tables[step["loads"][-1][0]]
        filtered = client.loads(label).get(table, {}).get("FILTERED_ROWS")
        if filtered and (found["said"] != "OK" or filtered > 0) and not found["said"].startswith("load: "):
            found["filtered"] = filtered
            if reasons := client.reasons(label, table):
                found["reason"] = reasons[0]
    if "rows" in step:
        found["rows"] = {sql: _rows(client, tables, sql) for sql in step["rows"]}
    return found


def _said(client: Client, label: str, tables: Mapping[str, str], step: Step) -> str:
    """ "OK", or the cause that the request names which was refused."""
    loads = [load for _ in range(step.get("times", 1)) for load in step["loads"]]
    for number, (name, body, *headers) in enumerate(loads[: 1 if "at_once" in step else None]):
        reply = client.load(label, tables[name], _body(body, number), **{**SENT, **(headers[0] if headers else {})})
        if not reply.ok:
            return f"load: {reply.status} {reply.message}"
    if "at_once" in step:
        name, body = loads[-1]
        with ThreadPoolExecutor(step["at_once"]) as pool:
            for number in range(step["at_once"]):
                pool.submit(Client(client.server).load, label, tables[name], _body(body, number), **SENT)
    reply = client.op(step.get("ending", "commit"), label)
    if reply.ok:
        assert client.state(label) == ("VISIBLE" if "ending" not in step else "UNKNOWN")
        return "OK"
    cause = _CAUSE.search(reply.message)
    return cause[1] if cause else reply.message


def _body(body: str | Mapping[str, Any], load: int) -> bytes:
    if isinstance(body, str):
        return body.encode()
    if "hex" in body:
        return bytes.fromhex(body["hex"])
    row = body["of"].replace("${load}", str(load)).replace("${10000}", "a" * 10_000)
    rows = [
        row.replace("${n}", str(n)).replace("${day}", f"2000-{1 + n // 25:02}-{1 + n % 25:02} 00:00:00")
        for n in range(body["rows"])
    ]
    return f"[{','.join([*rows, *([body['and']] if 'and' in body else [])])}]".encode()


def _rows(client: Client, tables: Mapping[str, str], sql: str) -> list[list[Any]]:
    """The rows of a statement over the scene's tables; of SHOW PARTITIONS the names."""
    named = re.sub(r"(?<=FROM )\w+", lambda match: f"{client.server.database}.{tables[match[0]]}", sql)
    rows = client.server.sql(named)
    return [[row[1]] if sql.startswith("SHOW") else list(row) for row in rows]


@pytest.fixture
def timed(tmp_path: Path) -> Iterator[tuple[Client, ManualClock]]:
    """A client of an emulator whose time passes by hand; the server took real minutes."""
    clock = ManualClock()
    with Emulator(tmp_path, Settings(cores=16), clock=clock) as emulator:
        client = Client(Server(emulator.load_url, emulator.query_url, "root", "", "d", "B"))
        client.server.sql("CREATE DATABASE d")
        with client.session:
            yield client, clock


@pytest.mark.own_emulator("its time passes by hand")
def test_a_backend_drops_what_has_outlived_its_timeout(timed: tuple[Client, ManualClock]) -> None:
    """Wire contract 4.12 [R]: nothing is told of it until a load or a commit comes."""
    client, clock = timed
    label, table = client.begin(timeout="5"), client.table()
    client.loaded(label, table, b'{"id": 1}', timeout="5")
    for seconds in (5, 306):
        clock.advance(seconds)
        assert client.state(label) == "UNKNOWN"
        load = client.loads(label)[table]
        assert (load["STATE"], load["ERROR_MSG"]) == ("LOADING", None)
    late = client.load(label, table, b'{"id": 2}')
    assert (late.status, late.message) == ("TXN_NOT_EXISTS", f"Transaction with label {label} not exists")
    assert client.commit(label).message.endswith("exception: Load timeout. Increase the timeout and retry}")
    assert client.rows(table) == []


@pytest.mark.own_emulator("its time passes by hand")
@pytest.mark.parametrize("header", ["900", None])
def test_a_transaction_may_be_open_for_longer_than_query_timeout(
    timed: tuple[Client, ManualClock], header: str | None
) -> None:
    """Wire contract 4.12 [R]: with begin's `timeout`, also where the loads name none."""
    client, clock = timed
    label, table = client.begin(timeout="900"), client.table()
    more = {} if header is None else {"timeout": header}
    client.loaded(label, table, b'{"id": 1}', **more)
    clock.advance(330)
    client.loaded(label, table, b'{"id": 2}', **more)
    assert client.commit(label).ok
    assert [row[0] for row in client.rows(table)] == [1, 2]


@pytest.mark.own_emulator("its time passes by hand")
def test_fifty_tables_fit_the_threads_of_sixteen_cores(timed: tuple[Client, ManualClock]) -> None:
    """Wire contract 4.16 [R]."""
    client, _ = timed
    tables = [client.table() for _ in range(50)]
    client.committed(*((table, b'{"id": 1}') for table in tables))
    assert sum(len(client.rows(table)) for table in tables) == len(tables)
