"""Databases of a test on a StarRocks that runs already; an emulator takes its part."""

from __future__ import annotations

import ast
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from _pytest.outcomes import Skipped

from integration.parcel import LEFT_OUT
from starrocks_emulator.server import Emulator
from starrocks_txn_sink import SinkOptions
from tests.support.query_port import query
from tests.support.servers import PREFIX, ServerForTests, open_labels, place_of, program_for, refusal, server_for_tests

ROOT = Path(__file__).parents[2]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Emulator]:
    with Emulator(tmp_path / "emulator") as emulator:
        yield emulator


@pytest.fixture
def urls(running: Emulator) -> str:
    return f"{running.load_url} {running.query_url}"


def databases(running: Emulator) -> set[str]:
    return {str(name) for (name,) in query(running, "SHOW DATABASES")}


def open_a_load(server: ServerForTests, database: str) -> None:
    server.query(f"CREATE DATABASE IF NOT EXISTS {database}")
    server.query(f"CREATE TABLE {database}.t (id INT NOT NULL) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)")
    headers = {
        "db": server.database(database),
        "label": "left",
        "transaction_type": "multi",
        "timeout": "600",
        "table": "t",
    }
    with requests.Session() as session:
        session.auth = ("root", "")
        session.trust_env = False
        assert session.post(f"{server.load_url}/api/transaction/begin", headers=headers).json()["Status"] == "OK"
        headers |= {"format": "json"}
        step = session.put(f"{server.load_url}/api/transaction/load", headers=headers, allow_redirects=False)
        assert session.put(step.headers["location"], b'{"id": 1}', headers=headers).json()["Status"] == "OK"


@pytest.mark.parametrize("database", ["shop", "many"])
@pytest.mark.parametrize("failure", [None, RuntimeError(), KeyboardInterrupt()])
def test_nothing_is_left_however_a_test_ends(
    running: Emulator, urls: str, failure: BaseException | None, database: str
) -> None:
    before = databases(running)
    with contextlib.suppress(RuntimeError, KeyboardInterrupt), server_for_tests(urls) as server:
        open_a_load(server, database)
        assert open_labels(server, server.query, database) == ["left"]
        assert all(name.startswith(PREFIX) for name in databases(running) - before)
        if failure is not None:
            raise failure
    assert databases(running) == before
    assert query(running, "SELECT STATE FROM information_schema.loads WHERE LABEL = 'left'") == [("CANCELLED",)]


def test_statements_name_the_tests_databases_and_nothing_else(urls: str) -> None:
    with server_for_tests(urls) as server:
        server.query("CREATE DATABASE IF NOT EXISTS shop")
        real = server.database("shop")
        for text in ("SELECT a FROM {}.t", "SHOW TABLES FROM {}", "SELECT 1 FROM `{}`.`t` WHERE x = 'shop'"):
            assert server.renamed(text.format("shop")) == text.format(real)
        loads = "SELECT 1 FROM information_schema.loads WHERE DB_NAME = '{}' AND x = 'shop.t'"
        assert server.renamed(loads.format("shop")) == loads.format(real)
        for text in ("INSERT INTO x.t VALUES ('shop')", "SELECT workshop.a FROM workshop", "SELECT 'shop.t'"):
            assert server.renamed(text) == text
        assert SinkOptions(**place_of(server)).database == real
        for text in (
            '.option("database", "{}")',
            "database='x', database=\"{}\"",
            'database = "{}"',
            '"database": "{}"',
            '"database-name": "{}"',
        ):
            assert program_for(server, text.format("shop")) == text.format(real)


def test_a_test_drops_no_database_but_its_own(running: Emulator, urls: str) -> None:
    with server_for_tests(urls) as server:
        query(running, "CREATE DATABASE shop")
        for sql in ("DROP DATABASE IF EXISTS shop FORCE", "CREATE DATABASE shop", "DROP DATABASE shop"):
            server.query(sql)
    assert "shop" in databases(running)


def test_a_server_with_somebodys_databases_is_refused(running: Emulator, urls: str) -> None:
    assert refusal(urls) is None
    query(running, "CREATE DATABASE shop")
    assert "(shop)" in str(refusal(urls))


def starting_an_emulator(module: Path) -> set[str]:
    """The functions of a module that start an emulator, by themselves or by others of the module."""
    body = ast.parse(module.read_text(encoding="utf-8")).body
    functions = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
    calls = {
        name: {
            call.func.id for call in ast.walk(node) if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
        }
        | {argument.arg for argument in node.args.args}
        for name, node in functions.items()
    }
    found = {"Emulator", "EmulatorProcess"}
    while more := {name for name, names in calls.items() if names & found} - found:
        found |= more
    return found


def test_all_folders_are_collected_in_one_run_that_says_what_it_leaves_out(urls: str, tmp_path: Path) -> None:
    """As `make test SERVER=…` names them: a plugin that is there twice ends such a run before its first test."""
    folders = ("tests/contract", "integration", "tests/spark", "tests/kafka", "tests/cdc")
    command = [sys.executable, "-m", "pytest", "-p", "integration.plugin", "-p", "no:cacheprovider", "-n", "0"]
    command += ["--collect-only", "-qq", "-m", "not deep", "--record", str(tmp_path)]
    command += ["--starrocks", "real", "--starrocks-server", urls, *folders]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
    assert [folder for folder in folders if f"{folder}/" not in run.stdout] == []
    reason, without_reason = "", []
    for line in (tmp_path / LEFT_OUT).read_text(encoding="utf-8").splitlines():
        if not line.startswith(" "):
            reason = line.partition(": ")[2]
        elif reason == "No StarRocks is needed.":
            file, _, function = line.strip().partition("[")[0].partition("::")
            without_reason += [line] * (function in starting_an_emulator(ROOT / file))
    assert reason
    assert without_reason == []


def test_what_only_an_emulator_has_skips_the_test(urls: str) -> None:
    with server_for_tests(urls) as server, pytest.raises(Skipped, match="Only an emulator has `faults`"):
        _ = server.faults
