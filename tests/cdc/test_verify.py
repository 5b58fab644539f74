"""`verify` on a real PostgreSQL and a real MariaDB behind `sync`: equal under traffic, and each planted fault is named.

Each column of the page of types is changed in one row, a row is lost, a delete is lost, a row is doubled, a table is
emptied.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cdc.verified_job import CASES, Shown, change_each_column, running
from tests.support.quick_start import Warehouse

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.mark.emulator(cores=8)
@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_equal_is_equal_under_traffic_and_each_fault_is_named(
    kind: str, warehouse: Warehouse, tmp_path: Path, capsys: Shown
) -> None:
    cases = CASES[kind]
    with running(kind, warehouse, tmp_path) as job:
        code, tables, report = job.verified(capsys)
        assert code == 0, report
        assert report["passed"]
        assert {name: table["status"] for name, table in tables.items()} == dict.fromkeys(
            ("codes", "items", "orders", "types"), "equal"
        )
        assert not [note for table in tables.values() for note in table["notes"]]
        change_each_column(warehouse, cases)
        warehouse.ask(f"DELETE FROM shop.types WHERE id = {len(cases)}")
        warehouse.ask("INSERT INTO shop.orders (id, name, price) VALUES (-1, 'gone', 1)")
        warehouse.ask("INSERT INTO shop.items VALUES (2, 'b')")
        warehouse.ask("TRUNCATE TABLE shop.codes")
        code, tables, report = job.verified(capsys)
        assert code == 1, report
        of_types = tables["types"]
        assert sorted(int(key) for (key,) in of_types["keys"]["different"]) == [*range(len(cases))], of_types
        assert of_types["keys"]["missing"] == [[str(len(cases))]]
        assert (of_types["missing"], of_types["extra"], of_types["different"]) == (1, 0, len(cases))
        assert tables["orders"]["keys"] == {"extra": [["-1"]]}
        assert tables["items"]["keys"] == {"extra": [["2"]]}
        assert (tables["codes"]["missing"], tables["codes"]["target_rows"]) == (300, 0)
        assert not any(table["unsettled"] for table in tables.values())
        code, tables, _ = job.verified(capsys, "--table", r"public\.orders|shop\.orders")
        assert [*tables] == ["orders"]
        assert code == 1
        assert job.process.running
