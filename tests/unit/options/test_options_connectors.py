"""SinkOptions.from_properties: our own names as text, and those of the official Flink and Spark connectors."""

from __future__ import annotations

from typing import Any

import pytest

from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.options import Compression, SinkOptions
from starrocks_txn_sink.options.connectors import FLINK_OPTIONS, SPARK_OPTIONS, MapsTo, Refused, translate
from starrocks_txn_sink.options.declarations import declarations
from starrocks_txn_sink.options.enums import COMPRESSIONS
from tests.support.log_records import records_of

# The configuration of the connector's own multi-table example, as a user would move it over.
BASE = {"load-url": "fe1:8030", "database": "shop", "delivery": "at-least-once"}
FLINK = {
    "jdbc-url": "jdbc:mysql://fe1:9030",
    "load-url": "fe1:8030;fe2:8030",
    "database-name": "*",
    "table-name": "*",
    "username": "loader",
    "password": "geheim",
    "sink.version": "V2",
    "sink.semantic": "at-least-once",
    "sink.label-prefix": "orders-job",
    "sink.transaction.multi-table.enabled": "true",
    "sink.transaction.multi-table.buffer-size": "67108864",
    "sink.buffer-flush.interval-ms": "2500",
    "sink.properties.format": "json",
    "sink.properties.strip_outer_array": "true",
    "sink.properties.column_separator": "\\x01",
    "sink.properties.row_delimiter": "\\x02",
    "table.order_items.properties.columns": "id,qty",
}
SPARK = {
    "starrocks.fe.http.url": "fe1:8030,fe2:8030",
    "starrocks.fe.jdbc.url": "jdbc:mysql://fe1:9030",
    "starrocks.table.identifier": "shop.orders",
    "starrocks.user": "loader",
    "starrocks.password": "geheim",
    "starrocks.write.label.prefix": "orders-",
    "starrocks.write.buffer.size": "64m",
    "starrocks.write.flush.interval.ms": "2500",
    "starrocks.write.max.retries": "0",
    "starrocks.write.num.partitions": "2",
    "starrocks.write.properties.format": "JSON",
    "starrocks.write.properties.column_separator": "\\x01",
    "starrocks.write.properties.strict_mode": "false",
    "starrocks.columns": "id,amount",
    "starrocks.timezone": "Asia/Shanghai",
}


def test_a_spark_configuration_moves_over(caplog: pytest.LogCaptureFixture) -> None:
    config = SinkOptions.from_properties(SPARK)
    assert [str(address) for address in config.frontends] == ["http://fe1:8030", "http://fe2:8030"]
    assert [(address.host, address.port) for address in config.query_addresses] == [("fe1", 9030)]
    assert (config.database, config.username, config.read_password(), config.job) == (
        "shop",
        "loader",
        "geheim",
        "orders-",
    )
    assert (config.buffer_bytes, config.commit_interval, config.max_attempts, config.lanes) == (64 << 20, 2.5, 1, 2)
    assert (config.exactly_once, config.timestamp_zone) == (True, "Asia/Shanghai")
    assert config.load_headers("orders")["strict_mode"] == "false"
    messages = " ".join(record.getMessage() for record in caplog.records)
    assert "starrocks.columns" in messages
    assert "a TableRoute names the columns" in messages
    assert "starrocks.write.properties.column_separator" in messages


def test_a_flink_configuration_moves_over() -> None:
    config = SinkOptions.from_properties(FLINK, database="shop")
    assert [str(address) for address in config.frontends] == ["http://fe1:8030", "http://fe2:8030"]
    assert [(address.host, address.port) for address in config.query_addresses] == [("fe1", 9030)]
    assert (config.username, config.read_password(), config.job) == ("loader", "geheim", "orders-job")
    assert (config.commit_interval, config.buffer_bytes) == (2.5, 64 << 20)
    assert config.load_headers("order_items")["columns"] == "id,qty"
    assert "columns" not in config.load_headers("orders")


@pytest.mark.parametrize(
    ("name", "value", "option", "expected"),
    [
        ("sink.max-retries", "3", "max_attempts", 4),
        ("sink.max-retries", "0", "max_attempts", 1),
        ("sink.parallelism", "4", "lanes", 4),
        ("sink.io.thread-count", "2", "load_parallelism", 2),
        ("sink.connect.timeout-ms", "1500", "connect_timeout", 1.5),
        ("sink.socket.timeout-ms", "30000", "read_timeout", 30.0),
        ("sink.socket.timeout-ms", "-1", "read_timeout", 60.0),
        ("sink.properties.timeout", "900", "timeout", 900),
        ("sink.properties.compression", "lz4_frame", "compression", Compression.LZ4_FRAME),
        ("sink.properties.enable_merge_commit", "false", "lanes", None),
        ("commit-interval", "250 ms", "commit_interval", 0.25),
        ("commitInterval", "2", "commit_interval", 2.0),
        ("COMMIT_INTERVAL", "2 s", "commit_interval", 2.0),
        ("batch.deadline", "20 min", "batch_deadline", 1200.0),
        ("bufferBytes", "32 MiB", "buffer_bytes", 32 << 20),
        ("lanes", 3, "lanes", 3),
        ("redirect-hosts", "be1,*.internal", "redirect_hosts", ("be1", "*.internal")),
        ("redirect-map", "be1:8040=proxy:1", "redirect_map", {"be1:8040": "proxy:1"}),
        ("warehouse", "etl", "warehouse", "etl"),
        ("starrocks.request.auth.user", "loader", "username", "loader"),
        ("starrocks.request.connect.timeout.ms", "1500", "connect_timeout", 1.5),
        ("starrocks.write.socket.timeout.ms", "-1", "read_timeout", 60.0),
        ("starrocks.write.buffer.size", "104857600", "buffer_bytes", 100 << 20),
        ("starrocks.write.buffer.size", "1 GB", "buffer_bytes", 1 << 30),
        ("starrocks.write.buffer.size", "16777216b", "buffer_bytes", 16 << 20),
        ("starrocks.write.max.retries", "-1", "max_attempts", 1),
        ("starrocks.write.num.partitions", "0", "lanes", None),
        ("starrocks.write.properties.timeout", "900", "timeout", 900),
        ("starrocks.write.properties.compression", "LZ4_FRAME", "compression", Compression.LZ4_FRAME),
        ("starrocks.write.properties.partial_update", "true", "properties", {"partial_update": "true"}),
        ("starrocks.write.use_bitmap_hash64", "false", "lanes", None),
    ],
)
def test_names_become_options(name: str, value: Any, option: str, expected: Any) -> None:
    config = SinkOptions.from_properties({**BASE, name: value})
    assert getattr(config, option) == expected


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("sink.version", "V1", "does not know the transaction interface"),
        ("sink.transaction.multi-table.enabled", "false", "every transaction here spans tables"),
        ("sink.at-least-once.use-transaction-stream-load", "false", "part of a transaction"),
        ("sink.properties.enable_merge_commit", "true", "merge commit"),
        ("sink.merge-commit.chunk.size", "1", "merge commit"),
        ("sink.properties.format", "csv", "json, which alone"),
        ("sink.properties.compression", "snappy", COMPRESSIONS),
        ("scan.connect.timeout-ms", "1", "this is a sink"),
        ("lookup.cache", "1", "this is a sink"),
        ("connector", "jdbc", "StarRocks sink"),
        ("sink.parallelism", "many", "a whole number"),
        ("sink.buffer-flush.interval", "5", "Did you mean sink.buffer-flush.interval-ms"),
        ("comit_interval", "5", "Did you mean commit_interval"),
        ("zzz", "5", "docs/reference/options.md"),
        ("buffer_bytes", "16MB", "buffer_bytes is '16MB'"),
        ("commit_interval", "soon", "commit_interval is 'soon'"),
        ("lanes", "1e3", "lanes is '1e3'"),
        ("tls_verify", "perhaps", "true or false"),
        ("table.other.orders.properties.columns", "a", "cannot span databases"),
        ("starrocks.table.identifier", "orders", "<database>.<table>"),
        ("starrocks.write.buffer.size", "many", "a size as in 104857600 or 100m"),
        ("starrocks.write.bufer.size", "1", "Did you mean starrocks.write.buffer.size"),
        ("starrocks.write.enable.transaction-stream-load", "false", "part of a transaction"),
        ("starrocks.write.use_bitmap_hash64", "true", "bitmap_hash64"),
        ("starrocks.write.properties.enclose", "x", "the sink writes JSON"),
        ("starrocks.filter.query", "id > 1", "this is a sink"),
        ("starrocks.batch.size", "1", "this is a sink"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(name: str, value: str, message: str) -> None:
    with pytest.raises(OptionError, match=message) as failure:
        SinkOptions.from_properties({**BASE, name: value})
    assert failure.value.advice


def test_exactly_once_needs_sql_under_the_connectors_name_too() -> None:
    names = {"load-url": "fe1:8030", "database": "shop", "sink.semantic": "exactly-once"}
    with pytest.raises(OptionError, match="there is no query_url"):
        SinkOptions.from_properties(names)
    assert SinkOptions.from_properties({**names, "jdbc-url": "jdbc:mysql://fe1:9030"}).exactly_once


def test_one_option_given_twice_must_agree() -> None:
    settings = {**BASE, "sink.buffer-flush.interval-ms": "1000"}
    assert SinkOptions.from_properties({**settings, "commit_interval": "1"}).commit_interval == 1.0
    with pytest.raises(OptionError, match="set twice"):
        SinkOptions.from_properties({**settings, "commit_interval": "2"})
    assert SinkOptions.from_properties({**settings}, commit_interval=2).commit_interval == 2.0


def test_the_newest_names_of_the_flink_connector_are_known(caplog: pytest.LogCaptureFixture) -> None:
    prefix = "sink.transaction.multi-table."
    settings = {
        f"{prefix}min-switch-bytes": "1048576",
        f"{prefix}mini-switch-interval-ms": "500",
        "sink.blackhole": "false",
    }
    settings |= {"sink.json.columns-from-flink-schema": "true", "sink.sanitize-error-log": "true"}
    assert translate(settings, {}) == {"load_bytes": 1 << 20}
    assert len(records_of(caplog, "option.without_effect")) == 3
    assert translate({f"{prefix}min-switch-bytes": "0"}, {}) == {"load_bytes": 1}
    with pytest.raises(OptionError, match="would drop all rows"):
        translate({"sink.blackhole": "true"}, {})


def test_every_database_needs_the_one_to_write_to() -> None:
    every = {"load-url": "fe:8030", "Database-Name": " * ", "sink.semantic": "at-least-once"}
    with pytest.raises(OptionError, match=r"Database-Name is \*, but a sink writes to one database"):
        SinkOptions.from_properties(every)
    assert SinkOptions.from_properties(every, database="shop").database == "shop"
    assert SinkOptions.from_properties({**every, "database": "shop"}).database == "shop"


def test_names_without_effect_are_reported_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    assert translate({"table-name": "*", "sink.scan-frequency.ms": "50", "sink.version": "AUTO"}, {}) == {}
    warned = records_of(caplog, "option.without_effect")
    table, scan = (record.getMessage() for record in warned)  # the version is what happens anyway
    assert "table-name" in table
    assert "every row names its table" in table
    assert "sink.scan-frequency.ms" in scan
    assert "no thread polls the buffers" in scan


def test_a_name_without_effect_is_a_warning_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    SinkOptions.from_properties({**BASE, "sink.chunk-limit": "1", "sink.version": "V2"})
    (record,) = records_of(caplog, "option.without_effect")
    assert record.levelname == "WARNING"
    assert "sink.chunk-limit" in record.getMessage()
    assert "chunk_bytes bounds the size of a load" in record.getMessage()


def test_the_table_of_names_is_complete_in_itself() -> None:
    options = {name for name, _ in declarations(SinkOptions)}
    for name, rule in {**FLINK_OPTIONS, **SPARK_OPTIONS}.items():
        assert name == name.lower()
        if isinstance(rule, MapsTo):
            assert rule.option in options, name
        else:
            assert rule.reason, name
        if isinstance(rule, Refused):
            assert all(value == value.lower() for value in rule.values)
