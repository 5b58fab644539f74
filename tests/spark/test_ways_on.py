"""A query that has stopped for good goes on in the way that its error names, with the same checkpoint.

What the error says to write into the file of `sync` is read as `sync` reads it.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from starrocks_txn_ops.sync.settings import parse_sync
from starrocks_txn_sink.protocol.dead_letters import DEAD_LETTER_TABLE
from tests.support import connect_schema
from tests.support.connect_schema import field
from tests.support.debezium_feed import change, marker, postgres
from tests.support.debezium_shop import DebeziumShop, end, insert, update

pytestmark = pytest.mark.spark

UNAVAILABLE = "__debezium_unavailable_value"
FILE = r"""
[source]
brokers = "127.0.0.1:9092"
topics = 'shop\.(public\..*|transaction)'
transactions = "{transactions}"
[target]
load_url = "http://127.0.0.1:8030"
query_url = "mysql://127.0.0.1:9030"
database = "shop"
{target}
[query]
checkpoint = "checkpoint"
[{section}]
{line}
"""
DEEP = f"{'[' * 3000}{']' * 3000}"


def assembly_of(line: str, transactions: str = "whole", section: str = "assembly", name: str = "") -> dict[str, Any]:
    """What a line of the file says to the class of the format, in its argument `name`."""
    name = name or line.partition(" = ")[0]
    assembly = parse_sync(FILE.format(section=section, line=line, transactions=transactions, target="")).assembly
    return {name: getattr(assembly, name), "transactions": transactions}


def error_of(debezium: DebeziumShop, **settings: Any) -> str:
    with pytest.raises(StreamingQueryException) as error:
        debezium.go(**settings)
    return str(error.value)


def keyed_table(debezium: DebeziumShop) -> dict[str, str]:
    debezium.ask(
        "CREATE TABLE shop.documents (position BIGINT NOT NULL, note STRING, part STRING, seq INT) "
        "PRIMARY KEY(position) DISTRIBUTED BY HASH(position)"
    )
    return {"public.items": "documents"}


def deleted(txn: int, order: int, position: int) -> dict[str, Any]:
    row = {"position": position, "note": None, "part": None, "seq": None}
    return change(postgres("items", 1000 * txn + order), f"{txn}:{1000 * txn + order}", order, None, row, op="d")


@pytest.mark.parametrize("transactions", ["whole", "none"])
def test_a_placeholder_without_a_row_is_passed_as_its_error_says(debezium: DebeziumShop, transactions: str) -> None:
    """The connector sends an update and its delete again, or a query began without a snapshot."""
    tables = keyed_table(debezium)
    debezium.put(update(5, 1, note=UNAVAILABLE), *([end(5, 1)] * (transactions == "whole")))
    line = 'unavailable_value = ""'
    for _ in range(2):
        assert line in error_of(debezium, tables=tables, transactions=transactions)
    way = assembly_of(line, transactions)
    debezium.go(tables=tables, **way)
    assert debezium.ask("SELECT position, note FROM shop.documents") == [(5, UNAVAILABLE)]
    debezium.put(insert(6, 1), deleted(6, 2, 5), *([end(6, 2)] * (transactions == "whole")))
    debezium.go(tables=tables, transactions=transactions)
    assert debezium.ask("SELECT position, note FROM shop.documents") == [(6, "x")]


def test_a_placeholder_for_a_table_without_a_key_is_passed_as_its_error_says(debezium: DebeziumShop) -> None:
    """A further setting at the source changes no message that is there."""
    debezium.put(update(5, 1, note=UNAVAILABLE), end(5, 1))
    line = 'unavailable_value = ""'
    assert line in error_of(debezium)
    debezium.go(**assembly_of(line))
    assert debezium.ask("SELECT note FROM shop.items") == [(UNAVAILABLE,)]


@pytest.mark.parametrize("transactions", ["whole", "none"])
def test_a_shadow_table_is_left_out_as_its_error_says(debezium: DebeziumShop, transactions: str) -> None:
    """gh-ost's tables are in the publication, and nobody wants them in StarRocks."""
    shadow = insert(5, 2)
    shadow["source"]["table"] = "_items_gho"
    ending = marker("END", "5:5999", {"public.items": 1, "public._items_gho": 1})
    debezium.put(insert(5, 1), shadow, *([ending] * (transactions == "whole")))
    assert "exclude under [tables] in sync's file" in error_of(debezium, transactions=transactions)
    way = assembly_of("exclude = ['.*_gho']", transactions, "tables", "tables")
    debezium.go(**way)
    assert debezium.rows() == [(5, 1)]


def typed(number: int, kind: str, name: str | None, value: Any, key: Any = "a") -> tuple[None, str]:
    """A change with its schema: a row whose key and one value are to be judged."""
    key_field = field("string" if isinstance(key, str) else "int64")
    fields = {"id": key_field, "v": field(kind, name), "n": field("int64")}
    return None, connect_schema.change("values", fields, {"id": key, "v": value, "n": number}, lsn=number).decode()


MICROS = "io.debezium.time.MicroTimestamp"
UNFIT = [
    pytest.param("DOUBLE", typed(1, "double", None, "NaN"), id="nan"),
    pytest.param("DOUBLE", typed(1, "double", None, "-Infinity"), id="infinity of a number", marks=pytest.mark.deep),
    pytest.param(
        "DATETIME", typed(1, "int64", MICROS, 9223372036825200000), id="infinity of a time", marks=pytest.mark.deep
    ),
    pytest.param("DATETIME", typed(1, "int64", MICROS, 253402300800000000), id="year 10000", marks=pytest.mark.deep),
    pytest.param(
        "DATE", typed(1, "int32", "io.debezium.time.Date", -719529), id="before year 1", marks=pytest.mark.deep
    ),
    pytest.param("VARCHAR(1048576)", typed(1, "string", None, "x" * 1048577), id="long text", marks=pytest.mark.deep),
    pytest.param("STRING", typed(1, "string", None, "ö" * 40000), id="text above STRING", marks=pytest.mark.deep),
    pytest.param("STRING", typed(1, "string", None, "a", key="k" * 140), id="long key"),
    pytest.param("STRING", typed(1, "string", None, "\ud83d"), id="lone surrogate", marks=pytest.mark.deep),
    pytest.param("JSON", typed(1, "string", "io.debezium.data.Json", DEEP), id="deep document"),
    pytest.param("INT", typed(1, "int64", None, 1 << 40), id="wider number"),
    pytest.param("INT", typed(1, "string", None, "text"), id="another type", marks=pytest.mark.deep),
]


@pytest.mark.parametrize(("column", "bad"), UNFIT)
def test_a_value_that_no_column_holds_is_set_aside_as_its_error_says(
    debezium: DebeziumShop, column: str, bad: tuple[None, str]
) -> None:
    debezium.ask(
        f"CREATE TABLE shop.`values` (id VARCHAR(65533) NOT NULL, v {column}, n BIGINT) PRIMARY KEY(id) "
        "DISTRIBUTED BY HASH(id)"
    )
    debezium.put_texts("shop.public.values", typed(0, *good(bad), key="b"), bad)
    said = error_of(debezium, transactions="none")
    assert re.search(r"on_bad_rows ?= ?['\"]quarantine", said)
    for place in ("table values", "partition 0", "offset 1001"):
        assert place in said
    target = parse_sync(FILE.format(section="spark", line="", transactions="none", target='on_bad_rows = "quarantine"'))
    debezium.go(transactions="none", on_bad_rows=target.options.on_bad_rows)
    assert debezium.ask("SELECT n FROM shop.`values`") == [(0,)]
    assert debezium.ask(f"SELECT DISTINCT table_name, position FROM shop.{DEAD_LETTER_TABLE}") == [("values", 1001)]


def good(bad: tuple[None, str]) -> tuple[str, str | None, None]:
    """The type of a bad row's value, which is NULL in a good one."""
    (_, value, _) = json.loads(bad[1])["schema"]["fields"][1]["fields"]
    return value["type"], value.get("name"), None


@pytest.mark.parametrize("transactions", ["whole", pytest.param("none", marks=pytest.mark.deep)])
def test_messages_of_a_converter_that_was_wrong_are_passed_as_their_error_says(
    debezium: DebeziumShop, transactions: str
) -> None:
    """The connector is right again, and what it has written before is in the topic for as long as that keeps it."""
    debezium.put_texts("shop.public.items", (None, "Struct{after=Struct{id=1}}"))
    line = 'on_malformed = "drop"'
    assert line.replace(" ", "") in error_of(debezium, transactions=transactions)
    debezium.put(insert(5, 1), *([end(5, 1)] * (transactions == "whole")))
    debezium.go(**assembly_of(line, transactions))
    debezium.put(insert(6, 1), *([end(6, 1)] * (transactions == "whole")))
    debezium.go(transactions=transactions)
    assert debezium.rows() == [(5, 1), (6, 1)]
