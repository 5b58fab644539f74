"""The file of `starrocks-txn-sink sync`: it becomes the objects of a pipeline, and errors name the line."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from starrocks_emulator.server import Emulator
from starrocks_txn_ops import cli
from starrocks_txn_ops.sync import command
from starrocks_txn_ops.sync.settings import Sync, parse_sync
from starrocks_txn_sink import CanalAssembly, DebeziumAssembly, MaxwellAssembly, SinkOptions, TableRules
from starrocks_txn_sink.errors import OptionError, PartitionClosed
from starrocks_txn_sink.options import SchemaChanges, TableOptions
from starrocks_txn_sink.sink.schema.plan import TableLayout
from starrocks_txn_sink.sources import SchemaRegistry, kafka_options
from starrocks_txn_sink.sources.formats.tables import route_of
from tests.support import debezium_feed
from tests.support.connect_schema import change, field, key
from tests.support.debezium_feed import postgres
from tests.support.query_port import query

SOURCE = "[source]\nbrokers = \"b:9092\"\ntopics = 'shop\\..*'\n"
TARGET = '[target]\nload_url = "http://fe:8030"\nquery_url = "mysql://fe:9030"\ndatabase = "shop"\n'
QUERY = '[query]\ncheckpoint = "/data/checkpoint"\n'
SMALLEST = SOURCE + TARGET + QUERY


def debezium(sync: Sync) -> DebeziumAssembly:
    assert isinstance(sync.assembly, DebeziumAssembly)
    return sync.assembly


def test_the_smallest_file_is_a_whole_pipeline() -> None:
    sync = parse_sync(SMALLEST)
    assert sync.kafka == kafka_options(
        "b:9092", subscribePattern=r"shop\..*", startingOffsets="earliest", maxOffsetsPerTrigger=500_000
    )
    assert sync.options == SinkOptions(
        load_url="http://fe:8030", query_url="mysql://fe:9030", database="shop", schema_changes="apply", freshness=2.0
    )
    assert sync.assembly == DebeziumAssembly(tables=((r"(?:[^.]+\.)?([^.]+)", "{1}"),))
    assert (sync.create, sync.checkpoint, sync.trigger, sync.until_end) == (True, "/data/checkpoint", None, False)


def test_lists_of_the_files_settings_join_the_recommended_ones_and_other_values_replace_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    driver, executor = "spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"
    lists = {driver: "-Xss32m", executor: "-Dcolour=red", "spark.jars.excludes": "org:artifact"}
    own = {"spark.sql.shuffle.partitions": "9", "spark.jars": "kafka.jar"}
    section = "".join(f'"{name}" = "{value}"\n' for name, value in {**lists, **own}.items())
    recommended = command.session_settings(parse_sync(SMALLEST), local=False)
    settings = command.session_settings(parse_sync(f"{SMALLEST}[spark]\n{section}"), local=False)
    assert str(recommended.pop("spark.jars.packages")).startswith("org.apache.spark:spark-sql-kafka-0-10_")
    marks = {"spark.jars.excludes": ","}
    joined_lists = {name: f"{recommended[name]}{marks.get(name, ' ')}{value}" for name, value in lists.items()}
    assert settings == recommended | own | joined_lists


@pytest.mark.parametrize(
    ("defaults", "section", "master"),
    [
        (None, "", "local"),
        ("spark.ui.enabled false\n", "", "local"),
        ("# spark.master local[8]\n  spark.master   spark://head:7077\n", "", "spark://head:7077"),
        ("spark.master = yarn\n", "", "yarn"),
        ("spark.master yarn\n", '[spark]\n"spark.master" = "local[4]"\n', "local[4]"),
    ],
)
def test_the_master_is_that_of_the_file_else_of_sparks_defaults(
    defaults: str | None, section: str, master: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers take the command's own Python and its modules only where they run on this machine."""
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    if defaults is not None:
        (tmp_path / "spark-defaults.conf").write_text(defaults)
    assert command.master_of(parse_sync(SMALLEST + section)) == master


@pytest.mark.parametrize("variable", ["JAVA_HOME", "PATH"])
def test_without_java_sync_says_so_and_creates_nothing(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    file = tmp_path / "shop.toml"
    file.write_text(SMALLEST)
    assert cli.main(["sync", str(file)]) == 2
    assert re.match("starrocks-txn-sink: Spark needs Java.* Install a JDK 17", capsys.readouterr().err)


def test_every_setting_reaches_its_object() -> None:
    text = (
        SOURCE
        + 'format = "debezium"\ntransactions = "whole"\ntransaction_topic = "txn"\n'
        + 'starting_offsets = "latest"\nmax_offsets = 7\n'
        + '[source.options]\n"kafka.security.protocol" = "SSL"\nminPartitions = 3\n'
        + TARGET
        + 'password_environment = "SECRET"\nledger_replication = 1\nredirect_hosts = ["be1"]\nschema_changes = "fail"\n'
        + '[target.tables.ods_orders]\nkeys = ["id"]\ntypes = { price = "DECIMAL(12,2)" }\n'
        + '[assembly]\nopen_timeout = "10 min"\non_open_timeout = "fail"\n'
        + "[tables]\ncreate = false\ninclude = ['public\\..*', 'audit\\.log']\nexclude = ['.*\\.secret']\n"
        + "[[routes]]\nfrom = 'public\\.(big_.*)'\nto = 'ods_{1}'\nbuckets = 48\nproperties = { bucket_size = 7 }\n"
        + "[[routes]]\nfrom = '(\\w+)\\.(.*)'\nto = '{1}_{2}'\n"
        + QUERY
        + 'trigger = "1 second"\n[spark]\n"spark.sql.shuffle.partitions" = 2\n'
    )
    sync = parse_sync(text)
    assert {
        "kafka.security.protocol": "SSL",
        "minPartitions": "3",
        "startingOffsets": "latest",
    }.items() <= sync.kafka.items()
    assert sync.options.tables["ods_orders"] == TableOptions(keys=("id",), types={"price": "DECIMAL(12,2)"})
    assert (str(sync.options.schema_changes), sync.options.password_environment) == (str(SchemaChanges.FAIL), "SECRET")
    assert (debezium(sync).open_timeout, debezium(sync).transaction_topic) == ("10 min", "txn")
    assert (sync.create, sync.trigger, sync.spark) == (False, "1 second", {"spark.sql.shuffle.partitions": "2"})
    tables = {name: route and route[1] for name in NAMES for route in [route_of(sync.routes, name)]}
    assert tables == {
        "public.big_one": "ods_big_one",
        "public.orders": "public_orders",
        "public.secret": "",
        "audit.log": "audit_log",
        "audit.logs": "",
        "other.x": "",
    }
    assert sync.layout_of("public.big_one") == TableLayout(48, {"bucket_size": "7"})
    assert sync.layout_of("public.orders") == TableLayout()


@pytest.mark.parametrize(
    ("target", "query_lines", "freshness"),
    [
        ("", "", 2.0),
        ('freshness = "500 ms"\n', "", 0.5),
        ("freshness = 30\n", "until_end = true\n", 30.0),
        ("", 'trigger = "1 s"\n', None),
    ],
)
def test_the_pace_is_that_of_freshness_or_of_a_trigger(target: str, query_lines: str, freshness: float | None) -> None:
    assert parse_sync(SOURCE + TARGET + target + QUERY + query_lines).options.freshness == freshness


def test_each_change_by_itself() -> None:
    text = SOURCE + 'transactions = "none"\n' + TARGET + QUERY
    assert debezium(parse_sync(text)).transactions == "none"
    with pytest.raises(OptionError, match="have no meaning with transactions"):
        parse_sync(text + '[assembly]\nopen_timeout = "1 min"\n')


NAMES = ("public.big_one", "public.orders", "public.secret", "audit.log", "audit.logs", "other.x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SMALLEST + "[sorce]\n", r"FILE, line 10: There is no section sorce.* Did you mean source\?"),
        (SOURCE + "broker = 1\n" + TARGET + QUERY, r"line 4: .*no setting broker in \[source\].* Did you mean brokers"),
        (TARGET + QUERY, "line 1: source lacks brokers"),
        (SOURCE + TARGET, "line 1: query lacks checkpoint"),
        (SOURCE + TARGET + "[query]\n", "line 8: query lacks checkpoint"),
        (SOURCE + "max_offsets = true\n" + TARGET + QUERY, "line 4: max_offsets is True.* whole number"),
        (SOURCE + "max_offsets = 0\n" + TARGET + QUERY, "line 4: max_offsets is 0"),
        (SOURCE + 'format = "debesium"\n' + TARGET + QUERY, "line 4: format is 'debesium'.* Did you mean debezium"),
        (SOURCE + '[source.options]\n"minPartitionz" = 3\n' + TARGET + QUERY, "line 5: .*no option minpartitionz"),
        (
            SOURCE + TARGET + 'databse = "x"\n' + QUERY,
            r"line 8: .*no option databse in \[target\].* Did you mean database",
        ),
        (SOURCE + TARGET + 'password = "x"\n' + QUERY, "line 8: A password does not belong.* password_environment"),
        (SOURCE + '[target]\nload_url = "http://fe:8030"\n' + QUERY, "line 4: target lacks query_url"),
        (SOURCE + TARGET + 'compression = "zap"\n' + QUERY, "line 8: compression is 'zap'"),
        (SOURCE + TARGET + '[target.tables.t]\nkey = ["id"]\n' + QUERY, "line 9: .* Did you mean keys"),
        (SMALLEST + '[assembly]\nopen_timout = "1 min"\n', "line 11: .*open_timout.* Did you mean open_timeout"),
        (SOURCE + 'transactions = "nine"\n' + TARGET + QUERY, "line 4: transactions is 'nine'.* Did you mean none"),
        (SOURCE + "transactions = true\n" + TARGET + QUERY, "line 4: .* Allowed: whole or none"),
        (SMALLEST + '[assembly]\ntables = "x"\n', "line 11: .*no argument for format .*tables"),
        (SMALLEST + "[[routes]]\nfrom = 'a'\nto = 'b'\n[[routes]]\nfrom = 'c'\n", "line 13: routes lacks to"),
        (SMALLEST + "[[routes]]\nfrom = 'a'\nto = 'b'\n[[routes]]\nfrom = 'c'\nto = 5\n", "line 15: to is 5"),
        (
            SMALLEST + "[[routes]]\nfrom = 'a'\nto = '{1}'\n",
            r"line 12: The template \{1\} has \{1\}, and its expression 0",
        ),
        (SMALLEST + "[routes]\nfrom = 'a'\n", "line 10: routes is one table"),
        (SMALLEST + "[tables]\nexclude = ['(']\n", r"line 11: \( is no regular expression"),
        (SMALLEST + "[tables]\ninclude = [1]\n", "line 11: include is .* list of texts"),
        (SMALLEST + 'trigger = "1 s"\nuntil_end = true\n', "line 11: trigger and until_end exclude"),
        (
            SOURCE + TARGET + 'freshness = "1 s"\n' + QUERY + 'trigger = "1 s"\n',
            "line 11: trigger and freshness both say how often to commit",
        ),
        (SOURCE + TARGET + 'freshness = "soon"\n' + QUERY, "line 8: freshness is"),
        (SMALLEST + "[assembly]\nstate_dir = 3\n", "line 11: state_dir is no text"),
        (SMALLEST + "[assembly]\nunavailable_value = true\n", "line 11: unavailable_value is no text"),
        (SMALLEST + "[assembly.registry]\nurl = 'http://r'\nwait = '3 s'\n", "line 12: wait is no number"),
        (SOURCE + TARGET + "[target.tables.t]\nkeys = 3\n" + QUERY, "line 9: keys is no list"),
        (SMALLEST + "= 1\n", r"FILE is no TOML: .*line 10"),
        (SMALLEST.replace("topics = '", "topics = '("), r"line 3: .* is no regular expression"),
        (SMALLEST.replace("topics = 'shop\\..*'", "topics = ''"), "line 3: topics is empty"),
        (SMALLEST.replace("topics = '", "topics = ' "), "line 3: topics has a space"),
        (SMALLEST + "[tables]\ninclude = ['a', '(?i)b']\n", "line 11: .*flags"),
        (SOURCE + 'options = { "minPartitionz" = 3 }\n' + TARGET + QUERY, "line 4: .*no option minpartitionz"),
        (SOURCE + "options = { startingOffsets = '{}' }\n" + TARGET + QUERY, "line 4: .*Write starting_offsets"),
        (SOURCE + "[source.options]\nSubscribe = 'a'\n" + TARGET + QUERY, "line 5: .*Write topics"),
        (SMALLEST + 'trigger = "1 secnd"\n', "line 10: trigger is '1 secnd'.*like 500ms"),
        (SMALLEST + '[spark]\n"spark.jars" = ["a"]\n', r"line 11: spark.jars is \['a'\].* Give a text"),
        (SMALLEST + "[[routes]]\nfrom = '('\nto = 'b'\n", r"line 11: \( is no regular expression"),
        (SMALLEST + "[[routes]]\nfrom = '(a)'\nto = 'b_$1'\n", r"line 12: The template b_\$1 has \$1.* Write \{1\}"),
        (SMALLEST + "[[routes]]\nfrom = '(a)'\nto = '{name}'\n", r"line 12: .* has \{name\}.* Write \{1\}"),
        (SMALLEST + "[[routes]]\nfrom = 'a'\nto = 'b'\nproperties = { a = [1] }\n", r"line 13: a is \[1\]"),
        (SMALLEST + "[[routes]]\nfrom = 'a'\nto = 'b'\nbuckets = -1\n", "line 13: buckets is -1.*above 0"),
        (SMALLEST + '[tables]\ncreate = "no"\n', "line 11: create is 'no'.* Allowed: true or false"),
        (SMALLEST + '[assembly]\non_open_timeout = "fall"\n', "line 11: on_open_timeout is 'fall'.* Use one of"),
        (SMALLEST + '[assembly]\ntime_precision_mode = "x"\n', "line 11: time_precision_mode is 'x'"),
        (SMALLEST + '[assembly.registry]\nulr = "x"\n', r"line 11: .* Did you mean url\?"),
        (SMALLEST + "[target.tables.t]\nkeys = [5]\n", r"line 11: .*\.keys is \[5\]"),
        (SMALLEST + "[target.tables.t]\ntypes = ['a']\n", r"line 11: .*\.types is \['a'\]"),
        (SMALLEST + '[target.tables."t"]\nkeys = ["a", "a"]\n', r"line 11: .*\.keys is"),
        (
            SMALLEST + "[target.tables.t.types]\na = 'VARCHR(5)'\n",
            r"line 11: VARCHR\(5\) is no type.* Did you mean VARCHAR",
        ),
        (SMALLEST + "[target.tables.t]\ntypes = { a = 'DECIMEL(9,2)' }\n", "line 11: .* Did you mean DECIMAL"),
        (SMALLEST + "[target.tables.t.properties]\nwher = '1'\n", "line 10: .*'wher', which is not a stream-load"),
    ],
)
def test_an_error_names_the_line_and_the_right_word(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_sync(text)


def test_a_file_that_cannot_be_read_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["sync", str(tmp_path / "nowhere.toml")]) == 2
    assert "nowhere.toml cannot be read" in capsys.readouterr().err


# --- with a broker of librdkafka, and the emulator ---


def event(table: str, topic: str, **fields: Any) -> tuple[str, bytes, bytes]:
    columns = {"id": field("int64"), **fields}
    return topic, key({"id": columns["id"]}), change(table, columns)


@pytest.fixture
def file(server: Emulator, tmp_path: Path) -> tuple[Path, Producer]:
    broker = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    place = next(iter(broker.list_topics(timeout=10).brokers.values()))
    for topic, key_, value in (event("orders", "shop.public.orders"), event("secret", "shop.public.secret")):
        broker.produce(topic, value, key_, partition=0)
    assert broker.flush(10) == 0
    path = tmp_path / "shop.toml"
    path.write_text(
        f"[source]\nbrokers = \"{place.host}:{place.port}\"\ntopics = 'shop\\..*'\n"
        f'[target]\nload_url = "{server.load_url}"\nquery_url = "{server.query_url}"\ndatabase = "shop"\n'
        f"[tables]\nexclude = ['.*\\.secret']\n[[routes]]\nfrom = 'public\\.(.*)'\nto = 'ods_{{1}}'\nbuckets = 3\n"
        f'properties = {{ "compression" = "ZSTD" }}\n[query]\ncheckpoint = "{tmp_path}/checkpoint"\n',
        encoding="utf-8",
    )
    return path, broker


STATEMENT = (
    "CREATE TABLE IF NOT EXISTS `shop`.`ods_orders` (`id` BIGINT NOT NULL) PRIMARY KEY (`id`) DISTRIBUTED BY "
    'HASH (`id`) BUCKETS 3 PROPERTIES ("replication_num" = "1", "compression" = "ZSTD");'
)


def test_a_dry_run_prints_what_would_happen(
    file: tuple[Path, Producer], server: Emulator, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["sync", str(file[0]), "--dry-run", "--deadline", "30"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if not line.startswith("-- ")] == [STATEMENT]
    assert any(line.startswith("-- doctor: All checks passed.") for line in lines), lines
    assert not [line for line in lines if "table.missing" in line]
    assert {
        r"-- route: .*\.secret -> left out",
        r"-- route: public\.(.*) -> ods_{1}",
        "-- table: public.orders -> ods_orders",
        "-- left out: public.secret",
        '-- target: database = "shop"',
        f'-- target: load_url = "{server.load_url}"',
        "-- target: freshness = 2.0",
        '-- target: schema_changes = "apply"',
    } <= set(lines)
    assert query(server, "SHOW TABLES FROM shop") == []


def test_a_dry_run_says_what_a_number_is_and_which_port_is_taken(
    file: tuple[Path, Producer], capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = file[0].read_text(encoding="utf-8")
        settings = settings.replace("[target]", f"[assembly]\nopen_timeout = 10\n[target]\nmetrics_port = {port}")
        file[0].write_text(settings, encoding="utf-8")
        assert cli.main(["sync", str(file[0]), "--dry-run", "--deadline", "30"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert "-- assembly: open_timeout = 10 seconds" in lines
        assert any(f"WARN metrics.port: Nothing can listen at 127.0.0.1:{port}" in line for line in lines), lines
        assert not any("All checks passed" in line for line in lines)
    assert cli.main(["sync", str(file[0]), "--dry-run", "--deadline", "30"]) == 0
    assert "metrics.port" not in capsys.readouterr().out


def test_a_dry_run_without_creation_needs_no_schema_and_prints_no_statement(
    file: tuple[Path, Producer], server: Emulator, capsys: pytest.CaptureFixture[str]
) -> None:
    path, broker = file
    broker.produce(
        "shop.public.plain",
        json.dumps(debezium_feed.change(postgres("plain", 1), "1:1", 1, {"id": 1})).encode(),
        partition=0,
    )
    assert broker.flush(10) == 0
    assert cli.main(["sync", str(path), "--dry-run", "--deadline", "30"]) == 2
    assert "create = false in [tables]" in capsys.readouterr().err
    query(server, STATEMENT)
    path.write_text(path.read_text(encoding="utf-8").replace("[tables]", "[tables]\ncreate = false"), encoding="utf-8")
    assert cli.main(["sync", str(path), "--dry-run", "--deadline", "30"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if not line.startswith("-- ")] == []


def test_a_dry_run_fails_where_a_job_would_fail(
    file: tuple[Path, Producer], server: Emulator, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = file[0].read_text(encoding="utf-8")
    assert server.load_url in settings
    file[0].write_text(settings.replace(server.load_url, "http://127.0.0.1:1"), encoding="utf-8")
    assert cli.main(["sync", str(file[0]), "--dry-run", "--deadline", "30"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert STATEMENT in lines
    assert any(line.startswith("-- doctor: A job would fail.") for line in lines), lines
    assert any(line.startswith("-- FAIL port: No connection to 127.0.0.1:1") for line in lines), lines


def test_a_table_that_is_there_is_changed_as_schema_changes_says(
    file: tuple[Path, Producer], server: Emulator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "start", lambda *_: 0)
    query(server, "CREATE TABLE shop.ods_wide (id BIGINT NOT NULL) PRIMARY KEY (id) DISTRIBUTED BY HASH (id)")
    block = {"id": "5:1", "total_order": 1, "data_collection_order": 1}
    columns = {"id": field("int64"), "note": field("string")}
    value = change("wide", columns, {"id": 1, "note": "x"}, transaction=block)
    file[1].produce("shop.public.wide", value, key({"id": field("int64")}, {"id": 1}), partition=0)
    assert file[1].flush(10) == 0
    alter = "ALTER TABLE `shop`.`ods_wide` ADD COLUMN `note` VARCHAR(1048576) NULL;"
    settings = file[0].read_text(encoding="utf-8")
    file[0].write_text(settings.replace("[target]", '[target]\nschema_changes = "fail"'), encoding="utf-8")
    assert cli.main(["sync", str(file[0]), "--dry-run", "--deadline", "30"]) == 0
    assert f"-- not run, as schema_changes says: {alter}" in capsys.readouterr().out.splitlines()
    assert cli.main(["sync", str(file[0]), "--deadline", "30"]) == 0
    assert capsys.readouterr().out.splitlines() == [STATEMENT]
    file[0].write_text(settings, encoding="utf-8")
    assert cli.main(["sync", str(file[0]), "--deadline", "30"]) == 0
    assert capsys.readouterr().out.splitlines() == [alter]


def test_tables_are_created_before_the_query_starts(
    file: tuple[Path, Producer], server: Emulator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = list[Any]()

    def start(_: Sync, tables: tuple[str, ...]) -> int:
        assert list(tables) == ["ods_orders"]
        started.append(query(server, "SHOW TABLES FROM shop"))
        return 0

    monkeypatch.setattr(command, "start", start)
    assert cli.main(["sync", str(file[0]), "--deadline", "30"]) == 0
    assert started == [[("ods_orders",)]]
    assert capsys.readouterr().out == STATEMENT + "\n"
    assert cli.main(["sync", str(file[0]), "--deadline", "30"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.emulator(cores=1)
def test_the_start_and_the_plan_say_what_the_tables_need(
    file: tuple[Path, Producer], server: Emulator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    setting = "pipeline_connector_scan_thread_num_per_cpu"
    query(server, f"UPDATE information_schema.be_configs SET value = '2' WHERE name = '{setting}'")
    query(
        server,
        "CREATE TABLE shop.ods_orders (id BIGINT NOT NULL) PRIMARY KEY (id) PARTITION BY (id)",
    )
    query(server, "ADMIN SET FRONTEND CONFIG ('max_load_initial_open_partition_number' = '1')")
    for number in range(2):
        query(server, f"ALTER TABLE shop.ods_orders ADD PARTITION p{number} VALUES IN ('{number}')")
    monkeypatch.setattr(command, "start", lambda *_: 0)
    assert cli.main(["sync", str(file[0]), "--deadline", "30"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "rows for all 1 tables needs 3 open loads; the smallest backend has 2 threads" in said
    assert "has 2 partitions, and a load opens the newest 1" in said
    assert cli.main(["plan", str(file[0]), "--deadline", "30"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("-- ") for line in lines)
    assert any("needs 3 open loads" in line for line in lines)


def test_a_table_without_the_partitions_that_nobody_makes_stops_the_start(server: Emulator) -> None:
    query(server, "CREATE TABLE shop.w (d DATE) DUPLICATE KEY (d) PARTITION BY time_slice(d, INTERVAL 7 DAY)")
    options = SinkOptions(load_url=server.load_url, query_url=server.query_url, database="shop", job="j")
    with pytest.raises(
        PartitionClosed, match=r"w: The table creates partitions by time_slice.*StarRocks 4\.0\.7"
    ) as end:
        list(command.lacks(options, ("w",)))
    assert "Make the partitions by an INSERT" in end.value.advice
    query(server, "INSERT INTO shop.w VALUES ('2024-02-29')")
    assert "no statement with which the sink could make them" in " ".join(command.lacks(options, ("w",)))


def test_a_table_that_is_refused_stops_the_start(
    file: tuple[Path, Producer], server: Emulator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, broker = file
    monkeypatch.setattr(command, "start", None)
    broker.produce("shop.public.logs", change("logs", {"n": field("int32")}), json.dumps(None).encode(), partition=0)
    assert broker.flush(10) == 0
    assert cli.main(["sync", str(path), "--deadline", "30"]) == 1
    said = capsys.readouterr().err
    assert "Table ods_logs: its source has no key" in said
    assert "leave the table out: exclude under [tables]" in said
    assert query(server, "SHOW TABLES FROM shop") == []


def test_rules_of_the_file_are_those_of_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SALT", "from the environment")
    (tmp_path / "salt").write_text("from a file\nno more\n")
    sync = parse_sync(
        SMALLEST
        + "[[rules]]\ntables = '.*'\nmetadata = [\"_txn_id\"]\n"
        + "[[rules]]\ntables = '(.*)_hot'\nhistory = '{1}_log'\ndeletes = 'mark'\n"
        + '[[rules]]\ntables = \'people\'\ndrop = ["note"]\nrename = { a = "b" }\n'
        + 'mask = { mail = "sha256" }\nsalt_environment = "SALT"\n'
        + f"[[rules]]\ntables = 'users'\nmask = {{ mail = \"sha256\" }}\nsalt_file = '{tmp_path / 'salt'}'\n"
    )
    assert sync.assembly.rules == (
        TableRules(tables=".*", metadata=["_txn_id"]),
        TableRules(tables="(.*)_hot", history="{1}_log", deletes="mark"),
        TableRules(
            tables="people", drop=["note"], rename={"a": "b"}, mask={"mail": "sha256"}, salt="from the environment"
        ),
        TableRules(tables="users", mask={"mail": "sha256"}, salt="from a file"),
    )


@pytest.mark.parametrize(
    ("lines", "line", "message"),
    [
        ("tables = '('\n", 11, "no regular expression"),
        ("tables = 't'\ndorp = [\"a\"]\n", 12, "Did you mean drop?"),
        ("tables = 't'\nmask = { a = \"sha265\" }\n", 12, "Write sha256, truncate:N"),
        ("tables = 't'\nmask = { a = \"sha256\" }\n", 12, "The mask of a has no salt"),
        ('tables = \'t\'\nmask = { a = "sha256" }\nsalt_environment = "NO_SALT"\n', 13, "NO_SALT has no salt"),
        ("tables = 't'\n\nsalt_file = \"/no/such\"\n", 13, "/no/such cannot be read"),
        ("tables = 't'\nmetadata = [\"_txnid\"]\n", 12, "metadata has '_txnid'"),
        ("tables = 't'\nhistory = '{1}_log'\n", 12, "its expression 0 groups"),
        ("tables = 't'\ndeletes = 'marc'\n", 12, "Did you mean mark?"),
        ('drop = ["a"]\n', 10, "rules lacks tables"),
    ],
)
def test_a_wrong_rule_is_an_error_with_its_line(lines: str, line: int, message: str) -> None:
    with pytest.raises(OptionError) as refused:
        parse_sync(SMALLEST + "[[rules]]\n" + lines, "shop.toml")
    assert f"shop.toml, line {line}: " in refused.value.message
    assert message in refused.value.message + refused.value.advice


OF_MAXWELL, OF_CANAL = 'format = "maxwell"\n', 'format = "canal"\ntransactions = "none"\n'


@pytest.mark.parametrize(
    ("source", "kind", "settings"),
    [
        (OF_MAXWELL, MaxwellAssembly, {"missing_begin": "drop"}),
        (OF_MAXWELL + 'transactions = "none"\n', MaxwellAssembly, {"transactions": "none"}),
        (OF_CANAL, CanalAssembly, {"on_truncate": "ignore", "reader": "spark"}),
    ],
)
def test_another_format_has_the_arguments_of_its_class_and_only_canal_creates_tables(
    source: str, kind: Any, settings: dict[str, str]
) -> None:
    lines = [f'{name} = "{value}"' for name, value in settings.items() if name != "transactions"]
    rules = "[[rules]]\ntables = 'orders'\ndrop = [\"note\"]\n"
    sync = parse_sync(SOURCE + source + TARGET + QUERY + rules + "\n".join(["[assembly]", *lines]))
    tables = ((r"(?:[^.]+\.)?([^.]+)", "{1}"),)
    assert sync.assembly == kind(tables=tables, rules=(TableRules(tables="orders", drop=["note"]),), **settings)
    assert sync.create == (kind is CanalAssembly)
    if kind is MaxwellAssembly:
        with pytest.raises(OptionError, match="Messages of the format maxwell do not say the columns' types"):
            _ = sync.describing


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SOURCE + 'format = "canal"\n', "format canal do not say where a source transaction ends"),
        (
            SOURCE + OF_MAXWELL + "[tables]\ncreate = true\n",
            "line 6: No table can be created of messages of the format",
        ),
        (
            SOURCE + OF_MAXWELL + '[assembly]\ndeleted_row = "key"\n',
            'line 6: There is no argument for format "maxwell": deleted_row in',
        ),
        (
            SOURCE + OF_MAXWELL + '[assembly.registry]\nurl = "http://r"\n',
            'There is no argument for format "maxwell": registry in',
        ),
        (SOURCE + 'format = "maxwel"\n', "Did you mean maxwell"),
    ],
)
def test_what_a_format_cannot_do_is_an_error_with_its_line(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_sync(text + TARGET + QUERY)


def test_a_schema_registry_has_a_section() -> None:
    text = SMALLEST + '[assembly.registry]\nurl = "http://registry:8081"\nuser = "reader"\npassword_environment = "P"\n'
    registry = SchemaRegistry(url="http://registry:8081", user="reader", password_environment="P")
    assert debezium(parse_sync(text)).registry == registry


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('registry = "http://registry"', "line 11: registry has no url"),
        ('[assembly.registry]\nuser = "reader"', "line 10: registry has no url"),
        ('[assembly.registry]\nurl = "http://r"\npassword = "x"', "line 12: There is no argument password in"),
        ('[assembly.registry]\nurl = "http://r"\ntoken = "x"', "line 12: There is no argument token in"),
        ('[assembly.registry]\nurl = "r:8081"', "line 11: The address of the schema registry"),
    ],
)
def test_a_wrong_registry_is_an_error_with_its_line(lines: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_sync(SMALLEST + ("" if lines.startswith("[") else "[assembly]\n") + lines + "\n")
