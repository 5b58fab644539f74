"""`verify --repair` on real databases behind `sync`: each fault is repaired under traffic, and the job goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cdc.verified_job import CASES, Fixture, Shown, change_each_column, running
from tests.support.quick_start import ROOT, Warehouse
from tests.support.waiting import wait_until

SPELLED_OTHERWISE = {"numeric(5,-2)"}
"""Types of which the connector writes other texts of the same values."""
KILLED = (4, 10, 15)
"""Requests in front of which a repair is killed: in the take-over, between the loads, and about the commit."""
RULES = """
[[rules]]
tables = 'codes'
metadata = ["_source_table"]

"""
pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.mark.emulator(cores=8)
@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_each_fault_is_repaired_under_traffic(kind: str, warehouse: Warehouse, tmp_path: Path, capsys: Shown) -> None:
    cases = CASES[kind]
    with running(kind, warehouse, tmp_path, RULES) as job:
        code, tables, report = job.verified(capsys)
        assert code == 0, report
        before = warehouse.ask("SELECT * FROM shop.types ORDER BY id")
        change_each_column(warehouse, cases)
        warehouse.ask(f"DELETE FROM shop.types WHERE id = {len(cases)}")
        warehouse.ask("INSERT INTO shop.orders (id, name, price) VALUES (-1, 'gone', 1)")
        warehouse.ask("INSERT INTO shop.items VALUES (2, 'b')")
        warehouse.ask("TRUNCATE TABLE shop.codes")
        code, tables, report = job.verified(capsys, "--repair", "--yes", "--hold", "30")
        assert code == 0, (report, job.process.messages())
        assert {table["status"] for table in tables.values()} == {"repaired"}
        labels = {label for table in tables.values() for label in table["repair"]["labels"]}
        assert len(labels) == 1  # all tables in one transaction
        code, tables, report = job.verified(capsys)
        assert code == 0, report
        assert {table["status"] for table in tables.values()} == {"equal"}
        other = {
            cases[number - 1].type: (was, value)
            for row, old in zip(warehouse.ask("SELECT * FROM shop.types ORDER BY id"), before, strict=True)
            for number, (value, was) in enumerate(zip(row, old, strict=True))
            if value != was
        }
        assert {*other} <= SPELLED_OTHERWISE, other
        lose_columns_and_get_rows_of_others(job, capsys)
        if kind == "postgres":
            for number in KILLED:
                warehouse.ask("DELETE FROM shop.codes WHERE n < 100")
                warehouse.ask("INSERT INTO shop.items VALUES (3, 'c')")
                command = [sys.executable, "-m", "tests.cdc.killed_repair", str(number), "verify", str(job.file)]
                words = ("--repair", "--yes", "--hold", "3")
                ended = subprocess.run([*command, *words], cwd=ROOT, capture_output=True, check=False, timeout=120)
                assert ended.returncode == -9, ended.stderr
                code, tables, report = job.verified(capsys, *words)
                assert code == 0, (number, report, job.process.messages())
                code, tables, report = job.verified(capsys)
                assert {table["status"] for table in tables.values()} == {"equal"}, (number, report)
        assert job.process.running


def lose_columns_and_get_rows_of_others(job: Fixture, capsys: Shown) -> None:
    """A table that rests has lost a column, one that the job writes all the time another, and one has a shard's rows.

    What the job writes next has the column.
    """
    ask = job.warehouse.ask
    ask("ALTER TABLE shop.types DROP COLUMN c1")
    ask(
        "INSERT INTO shop.codes (code, n, _source_table)"
        " VALUES ('x', -1, 'elsewhere.codes'), ('y', -1, 'elsewhere.codes')"
    )
    code, _, report = job.verified(capsys)
    assert (code, found(report)) == (
        1,
        {"types": ["c1"], "no table of the source": [["elsewhere.codes", "x", "-1"], ["elsewhere.codes", "y", "-1"]]},
    )
    ask("ALTER TABLE shop.orders DROP COLUMN price")
    words = ("--repair", "--yes", "--hold", "30")
    code, tables, report = job.verified(capsys, *words)
    assert (code, tables["types"]["repair"]["columns_added"]) == (1, ["c1"]), report
    assert tables["types"]["status"] == tables["orders"]["status"] == "repaired", report
    assert ask("SELECT count(*) FROM shop.codes WHERE n = -1") == [(2,)]
    job.db.commit("INSERT INTO orders VALUES (-7, 'new', 7)")
    wait_until(lambda: ask("SELECT price FROM shop.orders WHERE id = -7"), 60, job.process.messages)
    assert ask("SELECT price FROM shop.orders WHERE id = -7")[0][0] == 7
    code, _, report = job.verified(capsys, *words, "--delete-others", "elsewhere.*")
    assert code == 0, report
    code, tables, report = job.verified(capsys)
    assert (code, {table["status"] for table in tables.values()}) == (0, {"equal"}), report


def found(report: dict[str, Any]) -> dict[str, list[Any]]:
    """The columns that tables lack, and extra keys."""
    of_tables = {
        table["sources"][0].rpartition(".")[2]: [*table["columns_lacking"], *sorted(table["keys"].get("extra", ()))]
        for table in report["tables"]
    }
    return {name: names for name, names in of_tables.items() if names}
