"""`starrocks-txn-sink init`: the file that it writes is one of sync, and says what messages show and no more."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pymysql
import pytest
from confluent_kafka import Producer

from starrocks_txn_ops import cli
from starrocks_txn_ops.sync.catalog import DescribedTable
from starrocks_txn_ops.sync.init import Seen, file_lines
from starrocks_txn_ops.sync.settings import Sync, parse_sync
from starrocks_txn_sink import CanalAssembly, DebeziumAssembly, MaxwellAssembly
from starrocks_txn_sink.errors import InputError
from tests.support import canal_feed, debezium_feed, maxwell_feed
from tests.support.connect_schema import TIME, change, field, key
from tests.support.debezium_feed import marker, postgres

FIELDS = {"id": field("int64"), "at": field("int64", TIME + "MicroTime"), "name": field("string")}
KEY = key({"id": FIELDS["id"]})
BLOCK = {"id": "1:1", "total_order": 1, "data_collection_order": 1}
SECRET = "a value of a row"


def debezium(sync: Sync) -> DebeziumAssembly:
    assert isinstance(sync.assembly, DebeziumAssembly)
    return sync.assembly


def row(table: str = "orders", **more: Any) -> tuple[bytes | None, bytes]:
    return KEY, change(table, FIELDS, {"id": 1, "name": SECRET}, **more)


def seen(*messages: tuple[bytes | None, Any], topics: tuple[str, ...] = ()) -> Seen:
    messages_seen = Seen("shop", frozenset(topics or ("shop.public.orders",)))
    for key_, value in messages:
        messages_seen.take((key_, value if isinstance(value, bytes | None) else json.dumps(value).encode()))
    return messages_seen


def written(messages: Seen, **more: Any) -> tuple[Sync, str]:
    text = "\n".join(file_lines(messages, "b1:9092,b2:9092", **more))
    assert SECRET not in text
    return parse_sync(text), text


def test_what_messages_show_is_set_and_the_tables_are_listed() -> None:
    sync, text = written(seen(row(transaction=BLOCK), (None, marker("END", "1:1", {"public.orders": 1})), (KEY, None)))
    assert sync.kafka["kafka.bootstrap.servers"] == "b1:9092,b2:9092"
    assert sync.topics == r"shop\.(public\..*|transaction)"
    assert (debezium(sync).transactions, debezium(sync).on_open_timeout) == ("whole", "fail")
    assert (debezium(sync).deleted_row, sync.routes) == ("before", ((r"public\.(.*)", "{1}"),))
    assert "# public.orders, key id: id BIGINT, at STRING, name VARCHAR(1048576)" in text
    assert "#   at: StarRocks has no type for a time of the day" in text
    assert "DECIDE: nothing shows" not in text


def test_changes_without_a_transaction_are_written_one_by_one() -> None:
    sync, text = written(seen(row()))
    assert debezium(sync).transactions == "none"
    assert "[assembly]" not in text


@pytest.mark.parametrize("topics", [("shop.public.orders",), ("shop.public.orders", "shop.transaction")])
def test_a_snapshot_alone_shows_nothing_about_transactions(topics: tuple[str, ...]) -> None:
    """Nor does a logical message outside of a transaction. The topic of the markers is a sign of its own."""
    message = {"op": "m", "source": {"connector": "postgresql", "schema": "", "table": ""}, "transaction": None}
    sync, text = written(seen(row(op="r"), (None, message), topics=topics))
    assert debezium(sync).transactions == "whole"
    assert ("DECIDE: nothing shows whether the connector has" in text) == (len(topics) == 1)


def test_deletes_that_have_a_key_alone_are_read_by_it() -> None:
    delete = debezium_feed.change(postgres("orders", 1), None, None, None, None, op="d")
    sync, _ = written(seen(row(), (b'{"id":1}', delete)))
    assert debezium(sync).deleted_row == "key"


def test_canals_messages_say_their_types_and_keys() -> None:
    messages = [canal_feed.flat("INSERT", [{"id": "1", "note": SECRET}])]
    messages += [canal_feed.flat("UPDATE", [{"id": "1"}], [{"id": "2"}], table="logs", pkNames=None)]
    sync, text = written(seen(*((None, message) for message in messages), topics=("shop",)))
    assert isinstance(sync.assembly, CanalAssembly)
    assert (sync.create, sync.topics) == (True, "shop")
    assert sync.routes == ((r"shop\.(.*)", "{1}"),)
    assert "# shop.orders, key id: id INT, note VARCHAR(128)" in text
    assert "# DECIDE: shop.logs has no key." in text
    assert "DECIDE: messages of" not in text


@pytest.mark.parametrize(
    ("messages", "transactions"),
    [
        (maxwell_feed.transaction(7, ("insert", {"id": 1}), ("insert", {"note": SECRET})), "whole"),
        ([maxwell_feed.row("insert", {"id": 1}), maxwell_feed.row("insert", {"id": 2}, commit=True)], "none"),
        ([maxwell_feed.row("bootstrap-insert", {"id": 1})], "none"),
    ],
)
def test_maxwells_messages_say_no_types_so_their_tables_are_left_to_the_user(
    messages: list[Any], transactions: str
) -> None:
    sync, text = written(seen(*((None, message) for message in messages), topics=("shop.test.e", "shop.test.f")))
    assert isinstance(sync.assembly, MaxwellAssembly)
    assert (sync.create, sync.topics) == (False, r"shop(\..*)?")
    assert (sync.assembly.transactions, sync.routes) == (transactions, ((r"test\.(.*)", "{1}"),))
    assert "# DECIDE: messages of test.e have no types" in text
    assert "open_timeout" not in text


def test_schemas_have_routes_of_their_own_and_odd_topics_an_open_pattern() -> None:
    other_change = change("orders", FIELDS).replace(b'"schema": "public"', b'"schema": "sa.les"')
    sync, _ = written(seen(row(), (KEY, other_change)))
    assert sync.topics == r"shop\..*"
    assert sync.routes == ((r"public\.(.*)", "public_{1}"), (r"sa\.les\.(.*)", "sa_les_{1}"))


def test_what_must_be_decided_is_said() -> None:
    plain = debezium_feed.change(postgres("items", 1), "1:1", 1, {"id": 1})
    _, text = written(seen((None, change("logs", FIELDS, transaction=BLOCK)), (KEY, plain)))
    assert "# DECIDE: public.logs has no key." in text
    begin = text.index("# [[rules]]")
    rule = text[begin : text.index("only_history = true", begin)].replace("# ", "") + "only_history = true"
    assert parse_sync(f"{text}\n{rule}\n").assembly.rule_set.of("logs").written == "logs_log"  # type: ignore[union-attr]
    assert "# DECIDE: messages of public.items have no schema" in text
    assert "decimal.handling.mode must be string" in text


def test_secrets_of_kafka_are_not_copied() -> None:
    secrets = ["sasl.password", "sasl.jaas.config", "ssl.key.pem", "ssl.keystore.key", "sasl.oauthbearer.config"]
    settings = {"security.protocol": "SASL_SSL", "ssl.key.location": "/keys/1", **dict.fromkeys(secrets, "hidden-word")}
    sync, text = written(seen(row()), kafka_options=settings)
    assert "hidden-word" not in text
    assert sync.kafka["kafka.security.protocol"] == "SASL_SSL"
    assert sync.kafka["kafka.ssl.key.location"] == "/keys/1"


def test_a_name_of_the_source_cannot_end_a_comment() -> None:
    plain = debezium_feed.change(postgres('it"ems\ndatabase = "other"', 1), "1:1", 1, {"id": 1})
    sync, _ = written(seen((KEY, plain)))
    assert sync.options.database == "shop"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "None of the newest messages under shop is a connector's change"),
        ([(None, {"a": 1}), (None, b"\x00Avro")], "2 are something else"),
        (
            [row(), (None, canal_feed.flat("INSERT", [{"id": "1"}]))],
            "topics under shop have messages of canal and debezium",
        ),
        (
            [(None, {"type": "BEGIN", "txn_id": "1"})],
            "have messages of the format transactions, and",
        ),
    ],
)
def test_other_topics_are_refused_with_a_way_out(messages: list[Any], message: str) -> None:
    with pytest.raises(InputError) as refused:
        list(file_lines(seen(*messages), "b:9092"))
    assert message in refused.value.message
    assert refused.value.advice


def test_the_command_reads_a_broker_and_writes_a_new_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broker = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    place = next(iter(broker.list_topics(timeout=10).brokers.values()))
    key_, value = row(transaction=BLOCK)
    broker.produce("shop.public.orders", value, key_, partition=0)
    assert broker.flush(10) == 0
    command = ["init", "--kafka", f"{place.host}:{place.port}", "--prefix", "shop", "--deadline", "30"]
    assert cli.main(command) == 0
    printed = capsys.readouterr().out
    assert parse_sync(printed).routes == ((r"public\.(.*)", "{1}"),)
    file = tmp_path / "shop.toml"
    assert cli.main([*command, "--output", str(file)]) == 0
    assert file.read_text(encoding="utf-8") == printed
    assert cli.main([*command, "--output", str(file)]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert cli.main([*command[:3], "--prefix", "nothing", "--deadline", "30"]) == 2
    for topic in ("mysql", "mysql-other"):  # Canal's topic is the prefix itself
        broker.produce(topic, json.dumps(canal_feed.flat("INSERT", [{"id": "1"}], table=topic)), partition=0)
    assert broker.flush(10) == 0
    capsys.readouterr()
    assert cli.main([*command[:3], "--prefix", "mysql", "--deadline", "30"]) == 0
    sync = parse_sync(capsys.readouterr().out)
    assert (sync.topics, sync.create) == ("mysql", True)


@pytest.mark.parametrize("prefix", ["", "a+b", "the shop", "shop*"])
def test_a_prefix_that_begins_no_topic_is_refused(prefix: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its pattern would match nothing: Kafka has no such names, and Debezium takes no such prefix."""
    assert cli.main(["init", "--prefix", prefix, "--source", "postgresql://me@127.0.0.1:1/db"]) == 2
    assert "begins no topic's name" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--source", "postgresql://me:hidden-word@h/db"], "--source has a password"),
        (["--source", "oracle://me@h/db"], "names another kind of database"),
        (["--source", "mysql://h/db"], "lacks a part"),
        (["--source", "mysql://me@h"], "lacks a part"),
        (["--source", "postgresql://me@h/db?sslmode=require&password=hidden-word"], "set libpq's variables, as PGSSL"),
        (["--source", "mysql://me@h:port/db"], "is no URL"),
        (["--source", "mysql://me@h/db", "--source-password-environment", "ABSENT"], "ABSENT has no password"),
        ([], "--kafka is missing. Name the brokers, or the database with --source."),
    ],
)
def test_a_source_of_another_form_is_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["init", "--prefix", "shop", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "hidden-word" not in error


def test_without_its_driver_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    assert cli.main(["init", "--prefix", "shop", "--source", "postgresql://me@127.0.0.1:1/db"]) == 2
    assert "pip install 'starrocks-txn-sink[postgresql]'" in capsys.readouterr().err


def test_a_way_to_log_in_that_needs_a_package_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As MySQL's caching_sha2_password without TLS."""

    def connect(**_: object) -> None:
        raise RuntimeError("'cryptography' package is required for caching_sha2_password auth methods")

    monkeypatch.setattr(pymysql, "connect", connect)
    assert cli.main(["init", "--prefix", "shop", "--source", "mysql://me@127.0.0.1:1/db"]) == 2
    assert "'cryptography' package is required" in (error := capsys.readouterr().err)
    assert "Install that package with pip." in error


def test_a_catalogs_tables_with_odd_names_have_an_open_pattern() -> None:
    table = DescribedTable("public.ord ers", ("id",), (("id", "bigint"),))
    catalog = Seen("shop", frozenset({"shop.public.ord_ers"}), origin="the catalog", tables={table.collection: table})
    sync, text = written(catalog)
    assert sync.topics == r"shop\..*"
    assert "# public.ord ers, key id: id bigint" in text
