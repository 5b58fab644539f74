"""What a running Maxwell and a running Canal wrote about the same changes: the rows are those of the source.

`recordings/maxwell.jsonl` (keys and values) and `canal.jsonl` have the messages of a topic, a few of the same kind left
out; the first line says of what. The source's JSON was a text, for MariaDB has no type for it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from starrocks_txn_sink.assembler.rules.model import COMMIT, NUMBER
from starrocks_txn_sink.sources.formats.canal import CanalMessages
from starrocks_txn_sink.sources.formats.canal_types import canal_table
from starrocks_txn_sink.sources.formats.connect_types import columns_of
from starrocks_txn_sink.sources.formats.maxwell import MaxwellMessages
from tests.support import canal_feed
from tests.support.change_events import parse

pytestmark = pytest.mark.usefixtures("loop")

FOLDER = Path(__file__).parent / "recordings"
MAXWELL, CANAL = ((FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines() for name in ("maxwell", "canal"))
KEYS = {"items": ("order_id", "line"), "odd": ("or``der", "k:2"), "nokey": ("position", "seq")}
TEXT = "quotes ' \" back\\slash, comma\ttab\nline — ünïcode 日本語 😀"
Row = dict[str, Any]


def maxwell_batch(keyed: bool) -> pa.RecordBatch:
    """Its messages; those without Kafka's keys are only the ones that name the key columns themselves."""
    messages = [json.loads(line) for line in MAXWELL[1:]]
    if not keyed:
        messages = [{**message, "key": None} for message in messages if "primary_key_columns" in message["value"]]
    batch = canal_feed.batch(*(message["value"] for message in messages), partition="0")
    keys = [message["key"] and message["key"].encode() for message in messages]
    return batch.append_column("key", pa.array(keys, pa.binary()))


def events_of(program: str) -> list[Row]:
    if program == "maxwell":
        events = parse(MaxwellMessages, maxwell_batch(keyed=True), whole=True).events
    else:
        events = parse(CanalMessages, canal_feed.batch(*CANAL[1:])).events
    return [dict(event) for event in events.to_pylist()]


def tables_after(events: list[Row]) -> dict[str, dict[tuple[Any, ...], Row]]:
    """The rows of each table by their keys, numbers as texts."""
    tables: dict[str, dict[tuple[Any, ...], Row]] = {}
    for event in events:
        row = json.loads(event["row"], parse_int=str, parse_float=str)
        key = tuple((event | row)[name] for name in KEYS.get(event["table"], ("id",)))
        rows = tables.setdefault(event["table"], {})
        if event["op"] == "d":
            del rows[key]
        else:
            rows[key] = row
    return tables


@pytest.mark.parametrize("program", ["maxwell", "canal"])
def test_the_rows_are_those_of_the_source(program: str) -> None:
    """Rolled back orders are not there, moved and deleted ones neither; each delete meets its row."""
    tables = tables_after([event for event in events_of(program) if event["table"] not in ("orders", "items")])
    assert {key: row.get("price") for key, row in tables["changing"].items()} == {
        ("1",): "1.25",
        ("2",): None,
        ("3",): "9.99",
    }
    assert {key: row["note"] for key, row in tables["plain"].items()} == {
        ("2",): "B",
        ("9",): "c",
        ("5",): "e",
        ("6",): "kept",  # which MyISAM does not roll back
    }
    assert [(row["a"], row["b"]) for row in tables["nokey"].values()] == [("1", "a"), ("1", "a"), ("2", None)]
    assert {key: (row.get("note"), row["when"]) for key, row in tables["swap"].items()} == {
        ("13",): ("three", "0000-00-00"),
        ("12",): ("updated", "2024-01-01"),
        ("11",): ("w", None),
        ("20",): ("n", None),
        ("9000000000",): (None, None),
    }
    assert {key: row["sel ect"] for key, row in tables["odd"].items()} == {
        ('it\'s "q" ü:{,}', "1"): "b",
        ('z "}', "2"): None,
    }


@pytest.mark.parametrize("program", ["maxwell", "canal"])
def test_orders_and_items(program: str) -> None:
    tables = tables_after(events_of(program))
    orders = {key[0]: (row["customer"], float(row["total"]), row["note"]) for key, row in tables["orders"].items()}
    assert orders == {
        "1": ("Ann '1'", 5.5, None),
        "2": ("Ann '2'", 5.5, "updated"),
        "51": ("Ann '51'", 4.5, None),
        "60": ("again", 3.0, "n"),
        "100": ("Ann '3'", 4.5, None),
    }
    assert {*tables["items"]} == {(order, line) for order in ("1", "51", "100") for line in "012"}


@pytest.mark.parametrize("program", ["maxwell", "canal"])
def test_values_of_all_types(program: str) -> None:
    rows = tables_after(events_of(program))["kinds"]
    assert {*rows} == {("1",), ("4",), ("20",)}
    row = rows["1",]
    assert [row[name] for name in ("vc", "tx", "mt")] == [TEXT] * 3
    same = {
        "utiny": "255",
        "ui": "4294967295",
        "ubig": "18446744073709551615",
        "dec1": "-12345678.90",
        "dec2": "1234567890123456789012345678.0123456789",
        "d": "1.0E300",
        "b10": "513",
        "day": "2024-02-29",
        "t3": "12:34:56.789",
        "dt3": "2024-02-29 12:34:56.789",
        "dt6": "1999-12-31 23:59:59.999999",
        "ts6": "2024-06-01 10:00:00.000001",
        "js": '{"a": [1, null, "x \\"q\\" ü"], "b": {"c": 1.50}}',
    }
    assert {name: row[name] for name in same} == same
    differs = {"maxwell": (["a", "c d"], "AP9B"), "canal": ("5", "\0ÿA")}  # a SET, and BINARY(4)
    assert (row["se"], row["bi"]) == differs[program]
    assert [rows["4",][name] for name in ("ubig", "dt6", "js", "vc")] == [
        "18446744073709551614",
        None,
        '{"n": 1}',
        "changed",
    ]


def test_maxwells_numbers_make_whole_transactions() -> None:
    """The rows of a transaction are counted from 0, and the commit ends it: also of MyISAM, which has no xid."""
    number = 0
    for event in events_of("maxwell"):
        if event["seq"]:
            continue  # the row behind the delete of a changed key
        assert event[NUMBER] == (None if event[COMMIT] else number), event
        number = 0 if event[COMMIT] else number + 1
    assert number == 0


def test_maxwells_names_of_key_columns_say_what_kafkas_keys_say() -> None:
    without = parse(MaxwellMessages, maxwell_batch(keyed=False)).events
    keyed = parse(MaxwellMessages, maxwell_batch(keyed=True)).events
    changes = [
        [(event["table"], event["op"], event["row"]) for event in events.to_pylist()] for events in (without, keyed)
    ]
    assert changes[0] == changes[1][-len(changes[0]) :]


def test_canals_types_are_those_of_the_columns() -> None:
    (message, *_) = (line for line in CANAL[1:] if '"table":"kinds"' in line and '"type":"INSERT"' in line)
    table = canal_table(message.encode())
    assert table is not None
    assert table.keys == ("id",)
    types = {column.name: column.type for column in columns_of(table.schema)}
    expected = {
        "utiny": "SMALLINT",
        "ui": "BIGINT",
        "ubig": "LARGEINT",
        "dec2": "DECIMAL(38,10)",
        "day": "DATE",
        "dt6": "DATETIME",
        "t3": "STRING",
        "en": "INT",
        "se": "LARGEINT",
        "vc": "VARCHAR(800)",
    }
    assert {name: types[name] for name in expected} == expected
