"""The values of all types, in all modes of the connectors, are what the page of types says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cdc import source_types as source
from tests.cdc.mariadb import NoMariaDB
from tests.cdc.postgres import NoPostgres
from tests.cdc.types_run import PAGE, REFUSED, Seen, mariadb_rows, page_with, postgres_rows, registered_rows, table
from tests.kafka.jars import NoMaven

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def assert_exact(rows: Seen) -> None:
    """What declared modes make of a value is what the schema makes of it."""
    different = [
        (name, text, with_schema[name])
        for with_schema, without, declared in rows
        for name, text in declared.items()
        if text != without[name] and REFUSED not in text and text != with_schema[name]
    ]
    assert not different


def test_postgresql(tmp_path: Path) -> None:
    try:
        rows = postgres_rows(tmp_path)
    except (NoMaven, NoPostgres) as missing:
        pytest.skip(str(missing))
    lines = table(source.POSTGRES, source.POSTGRES_MODES, rows)
    assert_exact(rows)
    assert PAGE.read_text(encoding="utf-8") == page_with("postgres", lines)


def test_mariadb(tmp_path: Path) -> None:
    try:
        rows = mariadb_rows(tmp_path)
    except (NoMaven, NoMariaDB) as missing:
        pytest.skip(str(missing))
    lines = table(source.MARIADB, source.MARIADB_MODES, rows)
    assert_exact(rows)
    assert PAGE.read_text(encoding="utf-8") == page_with("mariadb", lines)


def test_what_a_registry_s_converters_write_says_what_json_with_its_schema_says(tmp_path: Path) -> None:
    try:
        connectors = registered_rows(tmp_path)
    except (NoMaven, NoPostgres) as missing:
        pytest.skip(str(missing))
    assert len(connectors) == len(source.POSTGRES_MODES)
    for by_json, *other_connectors in connectors:
        assert len(other_connectors) == 2
        different = [
            (source.POSTGRES[int(name[1:])], text, after[name])
            for rows in other_connectors
            for before, after in zip(by_json, rows, strict=True)
            for name, text in before.items()
            if json.loads(text) != json.loads(after[name])
        ]
        assert not different
