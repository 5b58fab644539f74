"""`starrocks-txn-sink plan`: a source's tables are created on the emulator, and hold a row of each type."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from starrocks_emulator.server import Emulator
from starrocks_txn_ops import cli
from starrocks_txn_sink import plan_tables
from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.options import SinkOptions, TableOptions
from starrocks_txn_sink.sources.formats.connect_values import convert_row, plans_of
from tests.support.avro_messages import Schemas, change as avro_change, framed
from tests.support.connect_schema import CONNECT, DATA, TIME, Field, change, decimal, field, key
from tests.support.left_behind import PASSWORD, options
from tests.support.micro_batch import write_micro_batch
from tests.support.query_port import query

pytestmark = [pytest.mark.emulator(password=PASSWORD), pytest.mark.usefixtures("environment")]
Shown = pytest.CaptureFixture[str]


def encoded(number: int) -> str:
    return base64.b64encode(number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)).decode()


FIELDS: dict[str, tuple[Field, Any, str]] = {
    "id": (field("int64", source_type="BIGINT UNSIGNED"), 7, "7"),
    "code": (field("string", source_type="VARCHAR", source_length=3), "äöü", "äöü"),
    "yes": (field("boolean"), True, "1"),
    "tiny": (field("int8"), -128, "-128"),
    "small": (field("int16"), -32768, "-32768"),
    "whole": (field("int32"), -(1 << 31), str(-(1 << 31))),
    "large": (field("int64"), (1 << 63) - 1, str((1 << 63) - 1)),
    "huge": (decimal(0, source_type="BIGINT UNSIGNED"), encoded((1 << 64) - 1), str((1 << 64) - 1)),
    "real": (field("float"), 0.5, "0.5"),
    "double_": (field("double"), 0.1, "0.1"),
    "price": (decimal(2, 38), encoded(-(10**38) + 1), f"-{'9' * 36}.99"),
    "wide": (decimal(3, 60), encoded(10**59), "1" + "0" * 56 + ".000"),
    "texts": (field("string", source_type="NUMERIC", source_length=10, source_scale=2), "12345678.90", "12345678.90"),
    "any_": (field("struct", DATA + "VariableScaleDecimal"), {"scale": 1, "value": encoded(15)}, "1.5"),
    "note": (field("string"), "a\n\"b'", "a\n\"b'"),
    "day": (field("int32", TIME + "Date"), 19782, "2024-02-29"),
    "iso_day": (field("string", TIME + "IsoDate"), "2024-02-29Z", "2024-02-29"),
    "at": (field("int64", TIME + "MicroTimestamp"), 1709210096123456, "2024-02-29 12:34:56.123456"),
    "zoned": (field("string", TIME + "ZonedTimestamp"), "2024-02-29T12:34:56+01:00", "2024-02-29 11:34:56"),
    "nano": (field("int64", TIME + "NanoTimestamp"), 1709210096123456789, "2024-02-29 12:34:56.123456789"),
    "clock": (field("int64", TIME + "MicroTime"), -3020399000000, "-838:59:59"),
    "old": (field("int64", CONNECT + "Timestamp"), 0, "1970-01-01 00:00:00"),
    "bits": (field("bytes", DATA + "Bits", length=64), base64.b64encode(b"\xff" * 8).decode(), str((1 << 64) - 1)),
    "bytes_": (field("bytes"), "AAE=", "AAE="),
    "doc": (field("string", DATA + "Json"), '{"a": [1]}', '{"a": [1]}'),
    "kind": (field("string", DATA + "Enum", source_type="ENUM", source_length=1), "parcel", "parcel"),
    "days": (field("array", items=field("int32", TIME + "Date")), [0, None], '["1970-01-01",null]'),
    "point": (field("struct", DATA + "geometry.Point"), {"x": 1.5}, '{"x": 1.5}'),
}
SCHEMAS = {name: of for name, (of, _, _) in FIELDS.items()}
KEY = key({"id": SCHEMAS["id"], "code": SCHEMAS["code"]})
EVENT = change("items", SCHEMAS)


Write = Callable[..., str]
Command = Callable[..., int]


@pytest.fixture
def plan(server: Emulator, tmp_path: Path) -> Command:
    """Runs `plan` on a file of sync with the sections `more`."""

    def run(*words: str, more: str = "", brokers: str = "127.0.0.1:1") -> int:
        path = tmp_path / "plain.toml"
        path.write_text(
            f"""
[source]
brokers = "{brokers}"
topics = 'shop\\..*'
[target]
load_url = "{server.load_url}"
query_url = "{server.query_url}"
database = "shop"
password_environment = "SECRET"
{more}
[query]
checkpoint = "checkpoint"
"""
        )
        return cli.main(["plan", str(path), *words])

    return run


@pytest.fixture
def lines(tmp_path: Path) -> Write:
    def write(*messages: tuple[bytes | None, bytes]) -> str:
        path = tmp_path / "messages"
        path.write_bytes(b"\n".join((key_ or b"null") + b"\t" + value for key_, value in messages))
        return str(path)

    return write


def test_a_planned_table_holds_a_row_of_each_type(server: Emulator, plan: Command, lines: Write, capsys: Shown) -> None:
    file = lines((KEY, EVENT))
    assert plan("--messages", file) == 0
    printed = capsys.readouterr().out
    assert "CREATE TABLE IF NOT EXISTS `shop`.`items` (`id` LARGEINT NOT NULL, `code` VARCHAR(12) NOT NULL," in printed
    assert 'HASH (`id`, `code`) PROPERTIES ("replication_num" = "1");' in printed
    assert "-- items.wide STRING: numbers with more digits" in printed
    assert query(server, "SHOW TABLES FROM shop") == []

    assert plan("--messages", file, "--apply") == 0
    assert capsys.readouterr().out.endswith("-- 1 statements were run\n")
    conversions = plans_of(json.dumps(json.loads(EVENT)["schema"]))["after"]
    row = convert_row(json.dumps({name: value for name, (_, value, _) in FIELDS.items()}), conversions)
    write_micro_batch(options(server), {42: row}, 1)
    texts = [
        f"`{name}`" if isinstance(value, list) else f"CAST(`{name}` AS VARCHAR)"
        for name, (_, value, _) in FIELDS.items()
    ]
    (read,) = query(server, f"SELECT {', '.join(texts)} FROM shop.items")  # an array has no cast
    assert dict(zip(FIELDS, read, strict=True)) == {name: value for name, (_, _, value) in FIELDS.items()} | {
        "yes": read[2]
    }
    assert read[2] in ("1", "true")

    assert plan("--messages", file, "--apply") == 0
    assert capsys.readouterr().out.endswith("-- no statements were run\n")


def test_the_printed_statements_can_be_run_as_they_are(
    server: Emulator, plan: Command, lines: Write, capsys: Shown
) -> None:
    more = "ledger_replication = 1\n[[routes]]\nfrom = 'public\\.(.*)'\nto = '{1}'\nbuckets = 3"
    assert plan("--messages", lines((KEY, EVENT)), more=more) == 0
    (statement,) = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("--")]
    assert "BUCKETS 3" in statement
    query(server, statement.removesuffix(";"))
    assert query(server, "SHOW TABLES FROM shop") == [("items",)]


ORDERS = {"id": field("int64"), "price": decimal(2, 10)}


def event(fields: Mapping[str, Field], table: str = "orders") -> tuple[bytes, bytes]:
    return key({"id": fields["id"]}), change(table, fields)


@pytest.mark.emulator(
    "CREATE TABLE shop.orders (id BIGINT NOT NULL, price DECIMAL(8,2), n INT) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)",
    password=PASSWORD,
)
def test_a_table_that_exists_follows_its_source(plan: Command, lines: Write, capsys: Shown) -> None:
    file = lines(event({**ORDERS, "n": field("int64"), "born": field("int32", TIME + "Date")}))
    assert plan("--messages", file, "--apply") == 0
    assert capsys.readouterr().out.splitlines() == [
        "-- no column holds infinity, years before 1 and after 9999, and the date 0000-00-00: orders.born",
        '-- a row with such a value stops the query; on_bad_rows = "quarantine" sets its source transaction aside',
        "ALTER TABLE `shop`.`orders` ADD COLUMN `born` DATE NULL, MODIFY COLUMN `price` DECIMAL(10,2) NULL, "
        "MODIFY COLUMN `n` BIGINT NULL;",
        "-- 1 statements were run",
    ]
    assert plan("--messages", file) == 0
    assert "nothing to do" in capsys.readouterr().out


@pytest.mark.emulator(
    "CREATE TABLE shop.orders (id BIGINT NOT NULL, day DATE NOT NULL) PRIMARY KEY(id, day) DISTRIBUTED BY HASH(id)",
    password=PASSWORD,
)
def test_nothing_is_run_beside_a_refusal(server: Emulator, plan: Command, lines: Write, capsys: Shown) -> None:
    orders, other_fields = {**ORDERS, "day": field("int32", TIME + "Date")}, {"id": field("int64")}
    file = lines(event(orders), event(other_fields, "others"))
    assert plan("--messages", file, "--apply") == 1
    output = capsys.readouterr()
    assert "Table orders: its key (id, day) has day, which the source's key (id) does not determine" in output.err
    assert "Nothing was run." in output.err
    assert "CREATE TABLE IF NOT EXISTS `shop`.`others`" in output.out
    assert query(server, "SHOW TABLES FROM shop") == [("orders",)]
    assert plan("--messages", file, "--apply", more='[target.tables.orders]\nkeys = ["id", "day"]') == 0


def test_keys_and_types_of_the_user_win(plan: Command, lines: Write, capsys: Shown) -> None:
    keyless = (b"null", change("logs", {**ORDERS, "v": field("double")}))
    assert plan("--messages", lines(keyless)) == 1
    assert "Table logs: its source has no key" in capsys.readouterr().err
    more = '[target.tables.logs]\nkeys = ["id"]\ntypes = { v = "DECIMAL(20,4)" }'
    assert plan("--messages", lines(keyless), more=more) == 0
    assert "`v` DECIMAL(20,4) NULL) PRIMARY KEY (`id`)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("assembly", "fate"),
    [
        ("", "A row of such a table stops the query: add [[routes]] for it"),
        ('on_unknown_table = "skip"', "Their rows are skipped"),
        ('on_unknown_table = "dead_letter"\ndead_letter_table = "letters"', "Their rows go into letters."),
    ],
)
def test_tables_without_a_route_are_named(assembly: str, fate: str, plan: Command, lines: Write, capsys: Shown) -> None:
    file = lines(event(ORDERS), event(ORDERS, "secret"), event(ORDERS, "hidden"))
    more = "[[routes]]\nfrom = 'public\\.(o.*)'\nto = '{1}'\n[tables]\nexclude = ['public\\.hidden']\n[assembly]\n"
    assert plan("--messages", file, more=more + assembly) == 0
    shown = capsys.readouterr().out
    assert "-- left out: public.hidden\n" in shown
    assert f"-- NO ROUTE: public.secret. {fate}" in shown


def test_lines_of_kcat_and_bare_values_are_read(plan: Command, tmp_path: Path, capsys: Shown) -> None:
    key_, value = event(ORDERS)
    path = tmp_path / "lines"
    kcat = {"topic": "shop.public.orders", "key": key_.decode(), "payload": value.decode()}
    tombstone = {"topic": "shop.public.orders", "key": key_.decode(), "payload": None}
    path.write_text(f"{json.dumps(tombstone)}\n\n{json.dumps(kcat)}\n", encoding="utf-8")
    assert plan("--messages", str(path)) == 0
    assert "PRIMARY KEY (`id`)" in capsys.readouterr().out
    path.write_bytes(change("logs", ORDERS))
    assert plan("--messages", str(path), more='[target.tables.logs]\nkeys = ["id"]') == 0
    assert "`shop`.`logs`" in capsys.readouterr().out


def test_a_file_of_messages_that_cannot_be_read_is_named(plan: Command, capsys: Shown) -> None:
    assert plan("--messages", "nowhere") == 2
    assert "--messages nowhere cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [("{}\nno json", "Line 2 of"), ('{"a": 1}', "None of the messages is a change"), ("", "None of the messages")],
)
def test_a_file_without_changes_is_an_error(
    content: str, message: str, plan: Command, tmp_path: Path, capsys: Shown
) -> None:
    path = tmp_path / "lines"
    path.write_text(content, encoding="utf-8")
    assert plan("--messages", str(path)) == 2
    assert message in capsys.readouterr().err


def test_python_has_the_same_plan(server: Emulator) -> None:
    sink_options = SinkOptions(
        load_url=server.load_url,
        query_url=server.query_url,
        database="shop",
        password=PASSWORD,
        tables={"orders": TableOptions(keys=["id"], types={"price": "DECIMAL(12,2)"})},
    )
    plan = plan_tables(sink_options, [(None, None), event(ORDERS)])
    assert plan.statements == [
        "CREATE TABLE IF NOT EXISTS `shop`.`orders` (`id` BIGINT NOT NULL, `price` DECIMAL(12,2) NULL) "
        'PRIMARY KEY (`id`) DISTRIBUTED BY HASH (`id`) PROPERTIES ("replication_num" = "1")'
    ]
    statements = list[str]()
    plan.apply(statements.append)
    plan.apply(statements.append)
    assert statements == plan.statements
    refused = plan_tables(sink_options, [(None, change("logs", ORDERS))])
    with pytest.raises(InputError, match="Nothing was run: Table logs"):
        refused.apply()


# --- Kafka ---


@pytest.fixture
def broker() -> Producer:
    """A client with a broker of librdkafka inside."""
    return Producer({"test.mock.num.brokers": 1, "log_level": 0})


def test_the_newest_message_of_each_topic_counts(broker: Producer, plan: Command, capsys: Shown) -> None:
    place = next(iter(broker.list_topics(timeout=10).brokers.values()))
    older, newer = event({"id": field("int32")}), event(ORDERS)
    for time, (key_, value) in enumerate([older, newer, (newer[0], None), event(ORDERS, "items")], 1000):
        topic = "shop.public.items" if value and b"items" in value else "shop.public.orders"
        broker.produce(topic, value, key_, partition=0, timestamp=time)
    broker.produce("shop.transaction", b'{"status": "BEGIN", "id": "1"}', partition=0, timestamp=9000)
    assert broker.flush(10) == 0
    assert plan("--deadline", "30", brokers=f"{place.host}:{place.port}") == 0
    printed = capsys.readouterr().out
    assert "`shop`.`orders` (`id` BIGINT NOT NULL, `price` DECIMAL(10,2) NULL)" in printed
    assert "`shop`.`items`" in printed


def test_messages_of_avro_are_read_by_their_registry() -> None:
    options = SinkOptions(load_url="http://fe:8030", database="shop", delivery="at-least-once", job="shop")
    messages = [(framed(3, {"id": 1}), avro_change(1, schema=2)), (framed(3, {"id": 1}), None)]
    plan = plan_tables(options, messages, registry=Schemas())
    (statement,) = plan.statements
    columns = "`id` BIGINT NOT NULL, `day` DATE NULL, `price` DECIMAL(10,2) NULL, `note` VARCHAR(1048576) NULL"
    assert f"({columns}) PRIMARY KEY (`id`)" in statement
    with pytest.raises(InputError, match="does not begin with the number of a schema"):
        plan_tables(options, [(None, b"{}")], registry=Schemas())


@pytest.fixture
def file(server: Emulator, tmp_path: Path) -> Path:
    path = tmp_path / "shop.toml"
    path.write_text(
        rf"""
[source]
brokers = "127.0.0.1:1"
topics = 'shop\..*'
[target]
load_url = "{server.load_url}"
query_url = "{server.query_url}"
database = "shop"
password_environment = "SECRET"
[[routes]]
from = 'public\.(.*)'
to = 'ods_{{1}}'
buckets = 2
[[rules]]
tables = 'ods_items'
drop = ["note"]
rename = {{ code = "word" }}
metadata = ["_op"]
history = "{{0}}_log"
[query]
checkpoint = "checkpoint"
"""
    )
    return path


def test_a_file_of_sync_says_it_all_with_its_rules(server: Emulator, file: Path, lines: Write, capsys: Shown) -> None:
    messages = lines((KEY, EVENT))
    assert cli.main(["plan", str(file), "--messages", messages]) == 0
    items, log = [line for line in capsys.readouterr().out.splitlines() if line.startswith("CREATE TABLE")]
    assert "`shop`.`ods_items` " in items
    assert "`shop`.`ods_items_log` " in log
    assert "`word` VARCHAR" in items
    assert "`_op` " in items
    assert "`note`" not in items + log
    assert "BUCKETS 2" in items
    assert cli.main(["plan", str(file), "--messages", messages, "--apply"]) == 0
    assert {("ods_items",), ("ods_items_log",)} <= {*query(server, "SHOW TABLES FROM shop")}


def test_a_source_without_a_key_has_ways_out_in_the_words_of_the_file(
    server: Emulator, file: Path, lines: Write, capsys: Shown
) -> None:
    messages = lines((None, EVENT))
    file.write_text(file.read_text().replace('history = "{0}_log"\n', ""))
    assert cli.main(["plan", str(file), "--messages", messages]) == 1
    output = capsys.readouterr().err
    assert "Table ods_items: its source has no key" in output
    assert 'keys = ["COLUMN"] in [target.tables.ods_items]' in output
    assert "[[rules]] with tables = 'ods_items', history = '{0}_log' and only_history = true" in output
    rule = "[[rules]]\ntables = 'ods_items'\nhistory = '{0}_log'\nonly_history = true\n"
    text = file.read_text()
    file.write_text(text + rule)
    assert cli.main(["plan", str(file), "--messages", messages, "--apply"]) == 0
    assert [name for (name,) in query(server, "SHOW TABLES FROM shop") if name.startswith("ods")] == ["ods_items_log"]
    assert cli.main(["plan", str(file), "--messages", messages]) == 0
    file.write_text(text + '[target.tables.ods_items]\nkeys = ["id", "word"]\n')
    assert cli.main(["plan", str(file), "--messages", messages]) == 0
    assert "PRIMARY KEY (`id`, `word`)" in capsys.readouterr().out
    assert "exclude under [tables] of sync's file" in output
