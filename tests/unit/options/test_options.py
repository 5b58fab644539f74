"""SinkOptions: what is accepted, what is refused, and that every refusal says what to do."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.options import Compression, Delivery, SinkOptions, TableOptions
from starrocks_txn_sink.options.combinations import Feature
from starrocks_txn_sink.options.declarations import declarations
from starrocks_txn_sink.options.enums import COMPRESSIONS

ROOT = Path(__file__).parents[3]


def options(**changes: Any) -> SinkOptions:
    return SinkOptions(**{"load_url": "http://fe1:8030", "database": "shop", "delivery": "at-least-once", **changes})


def refused(**changes: Any) -> str:
    with pytest.raises(OptionError) as failure:
        options(**changes)
    return str(failure.value)


def test_the_defaults_are_those_of_the_documentation() -> None:
    config = options(delivery=None, query_url="mysql://fe1:9030")
    assert (config.username, config.lanes, config.commit_interval, config.timeout) == ("root", None, None, 600)
    assert (config.buffer_bytes, config.chunk_bytes, config.load_bytes) == (128 << 20, 16 << 20, 4 << 20)
    assert config.batch_deadline == 1200.0
    assert config.exactly_once
    assert config.ledger_create
    assert config.compression is Compression.NONE


def test_at_least_once_keeps_no_ledger_even_with_sql() -> None:
    config = options(query_url="mysql://fe1:9030", delivery="at-least-once")
    assert config.delivery is Delivery.AT_LEAST_ONCE
    assert not config.exactly_once


def test_derived_defaults_follow_the_options_they_come_from() -> None:
    config = options(timeout=60, buffer_bytes=8 << 20)
    assert (config.batch_deadline, config.chunk_bytes, config.load_bytes) == (120.0, 1 << 20, 1 << 20)
    assert options(buffer_bytes=1).chunk_bytes == 1


@given(st.floats(min_value=0.001, max_value=300.0))
def test_the_mini_interval_is_a_tenth_between_a_tenth_of_a_second_and_a_second(interval: float) -> None:
    mini = options(commit_interval=interval).mini_interval
    assert 0.1 <= mini <= 1.0
    assert mini == pytest.approx(min(1.0, max(0.1, interval / 10)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fe1:8030", ["http://fe1:8030"]),
        ("fe1", ["http://fe1:8030"]),
        ("http://fe1:8030, fe2:8031;fe1:8030", ["http://fe1:8030", "http://fe2:8031"]),
        (["https://lb"], ["https://lb:443"]),
        ("http://[::1]:8030/", ["http://[::1]:8030"]),
    ],
)
def test_load_url_takes_lists_bare_hosts_and_ipv6(text: Any, expected: list[str]) -> None:
    assert [str(address) for address in options(load_url=text).frontends] == expected


@pytest.mark.parametrize(
    "text", ["mysql://fe1:9030,fe2:9031", "jdbc:mysql://fe1:9030,fe2:9031/shop?useSSL=false", ["fe1", "fe2:9031"]]
)
def test_query_url_takes_mysql_and_jdbc_forms(text: Any) -> None:
    addresses = options(query_url=text).query_addresses
    assert [(address.host, address.port) for address in addresses] == [("fe1", 9030), ("fe2", 9031)]
    assert options().query_addresses == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"load_url": ""}, "load_url is empty"),
        ({"load_url": "ftp://fe:1"}, "scheme"),
        ({"load_url": "http://fe:99999"}, "not an address"),
        ({"load_url": "http://fe1:8030,https://fe2:8443"}, "mixes http and https"),
        ({"load_url": "http://fe1:8030/path"}, "more than scheme"),
        ({"load_url": "fe1,fe2", "query_url": "mysql://fe1:9030,FE2:8030"}, "both name fe2:8030.*query_port"),
        ({"load_url": "http://fe1\\.evil.example:8030"}, "invalid host"),
        ({"load_url": "http://größe:8030"}, "invalid host"),
        ({"query_url": "mysql://fe1%00:9030"}, "invalid host"),
        ({"query_url": {"h:SECRET"}}, "query_url is 'set'"),
        ({"redirect_hosts": ["be[12]"]}, "not a host rule"),
        ({"redirect_hosts": ["::1"]}, r"in brackets, as in \[::1\]"),
        ({"load_url": 8030}, "load_url is 8030"),
        ({"database": ""}, "database is ''"),
        ({"database": "*"}, "not \\*"),
        ({"database": "a\r\nb"}, "database"),
        ({"username": "a:b"}, "colon"),
        ({"password": "a\nb"}, "line breaks"),
        ({"job": "my job"}, "job is 'my job'"),
        ({"job": "x" * 65}, "1 to 64"),
        ({"job": "zähler"}, "letters, digits"),
        ({"shuffle": "sometimes"}, "auto, true or false"),
        ({"lanes": 0}, "lanes is 0"),
        ({"lanes": True}, "lanes is True"),
        ({"lanes": 1.5}, "lanes is 1.5"),
        ({"timeout": 9}, "from 10 to 259200"),
        ({"timeout": 259_201}, "from 10 to 259200"),
        ({"timeout": 600, "commit_interval": 301}, "more than half of timeout"),
        ({"commit_interval": 0}, "above 0"),
        ({"commit_interval": float("nan")}, "above 0"),
        ({"buffer_bytes": 0}, "buffer_bytes is 0"),
        ({"buffer_bytes": -1}, "buffer_bytes is -1"),
        ({"chunk_bytes": 200 << 20}, "more than buffer_bytes"),
        ({"delivery": "exactly-once"}, "delivery is exactly-once, and there is no query_url"),
        ({"delivery": None}, "delivery is not set, and there is no query_url.*at-least-once"),
        ({"delivery": "maybe"}, "at-least-once or exactly-once"),
        ({"compression": "snappy"}, COMPRESSIONS),
        ({"tls_ca": "/ca.pem"}, "load_url is plain http"),
        ({"tls_verify": False}, "load_url is plain http"),
        ({"tls_verify": "no"}, "true or false"),
        ({"load_url": "https://fe", "tls_key": "/k.pem"}, "without tls_certificate"),
        ({"load_url": "https://fe", "tls_ca": "/c.pem", "tls_verify": False}, "tls_verify is off"),
        ({"password": "a", "password_file": "/f"}, "both set"),
        ({"redirect_hosts": ["be 1"]}, "not a host rule"),
        ({"redirect_hosts": ["10.0.0.1/8"]}, "no bits set behind the prefix"),
        ({"redirect_map": {"be1": "proxy:1"}}, "redirect_map contains|not an address"),
        ({"tables": {"other.orders": {}}}, "cannot span databases"),
        ({"tables": {"orders": "columns"}}, "a mapping of stream-load properties"),
        ({"tables": {"orders": {"partial_update_mode": "row"}}}, "partial_update_mode without partial_update"),
        ({"properties": ["a"]}, "a mapping"),
        ({"warehouse": "a\nb"}, "warehouse"),
    ],
)
def test_what_cannot_work_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message) as failure:
        options(**change)
    assert str(failure.value).endswith((".", ")", "*"))
    assert failure.value.advice


@pytest.mark.parametrize("missing", ["load_url", "database"])
def test_required_options_are_missed_by_name(missing: str) -> None:
    assert f"{missing} is missing" in refused(**{missing: None})


@pytest.mark.parametrize("option", ["load_url", "query_url"])
def test_a_password_in_a_url_is_refused_and_not_repeated(option: str) -> None:
    message = refused(**{option: "http://root:geheim@fe:8030"})
    assert "never inside a URL" in message
    assert "geheim" not in message


def test_the_password_is_never_shown() -> None:
    config = options(password="geheim-1")
    assert "geheim-1" not in repr(config) + str(config)
    assert "geheim" not in refused(password="geheim\n")
    assert config.read_password() == "geheim-1"


def test_the_password_is_read_from_a_file_or_the_environment_at_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "password"
    from_file = options(password_file=str(place))
    with pytest.raises(OptionError, match="every executor"):
        from_file.read_password()
    place.write_text("first\r\nsecond\n", encoding="utf-8")
    assert from_file.read_password() == "first"
    from_environment = options(password_environment="SHOP_PASSWORD")
    with pytest.raises(OptionError, match="SHOP_PASSWORD, which is not set"):
        from_environment.read_password()
    monkeypatch.setenv("SHOP_PASSWORD", "third")
    assert from_environment.read_password() == "third"
    assert "third" not in repr(from_environment)


def test_options_are_frozen_and_travel_by_pickle() -> None:
    config = options(password="p", tables={"orders": {"strict_mode": True}}, redirect_hosts="be1,be2")
    assert pickle.loads(pickle.dumps(config)) == config
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.lanes = 2  # type: ignore[misc]
    assert not hasattr(config, "__dict__")


def test_begin_headers_carry_lifetime_and_warehouse() -> None:
    assert options().begin_headers() == {"timeout": "600"}
    assert options(timeout=30, warehouse="etl").begin_headers() == {"timeout": "30", "warehouse": "etl"}


def test_a_mapping_with_fields_of_the_options_of_a_table_names_them() -> None:
    message = refused(tables={"orders": {"keys": ["id"], "strict_mode": "false", "types": {}}})
    assert "tables['orders'] is a mapping, which holds stream-load properties, and has keys and types." in message
    assert "Write TableOptions(keys=…, types=…) in its place." in message
    assert options(tables={"orders": {"columns": "id"}}).tables["orders"] == TableOptions(properties={"columns": "id"})


def test_load_headers_lay_the_tables_properties_over_all() -> None:
    config = options(
        compression="gzip",
        properties={"Strict_Mode": "true", "timezone": "UTC"},
        tables={"shop.orders": TableOptions(properties={"strict_mode": "false"})},
    )
    common = {
        "format": "json",
        "strip_outer_array": "true",
        "ignore_json_size": "true",
        "timeout": "600",
        "compression": "gzip",
        "timezone": "UTC",
    }
    assert config.load_headers("orders") == {**common, "strict_mode": "false"}
    assert config.load_headers("items") == {**common, "strict_mode": "true"}
    assert "compression" not in options().load_headers("orders")


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"strict_mod": "true"}, "Did you mean strict_mode"),
        ({"quite_unheard_of": "1"}, "Known are: columns"),
        ({"format": "csv"}, "json, which alone the sink writes"),
        ({"strip_outer_array": "false"}, "one JSON array"),
        ({"column_separator": ","}, "the sink writes JSON"),
        ({"label": "x"}, "the sink sets it itself"),
        ({"Transaction_Type": "single"}, "the sink sets it itself"),
        ({"db": "x"}, "one database"),
        ({"timeout": "5"}, "set the option timeout"),
        ({"compression": "snappy"}, COMPRESSIONS),
        ({"enable_merge_commit": "true"}, "merge commit"),
        ({"merge_commit_interval_ms": "1"}, "merge commit"),
        ({"max_filter_ratio": "0.5"}, "leave rows out of a commit"),
        ({"partial_update": "TRUE"}, "true or false"),
        ({"columns": "a\r\nlabel: x"}, "one HTTP header"),
        ({"partial_update_mode": "column"}, "partial_update_mode without partial_update"),
    ],
)
def test_stream_load_properties_are_judged(properties: dict[str, str], message: str) -> None:
    assert message in refused(properties=properties)
    table = refused(tables={"orders": properties})
    assert message in table
    assert "orders" in table


def test_every_option_says_what_it_means() -> None:
    for name, declared in declarations(SinkOptions):
        assert declared.meaning.endswith("."), name
        assert declared.default_text, name


@pytest.mark.parametrize("where", ["properties", "tables"])
def test_a_partial_update_of_untyped_rows_needs_columns(where: str) -> None:
    partial = {"partial_update": "true"}
    config = options(**{where: partial if where == "properties" else {"orders": partial}})
    with pytest.raises(OptionError, match=r"partial_update needs a list of columns.*TableRoute"):
        config.check_features(Feature.JSON_TEXTS)
    options(tables={"orders": {**partial, "columns": "id,v"}}).check_features(Feature.JSON_TEXTS)


def test_a_table_may_be_compressed_in_another_way() -> None:
    config = options(compression="zstd", tables={"small": {"compression": "none"}, "other": {"compression": "gzip"}})
    headers = {table: config.load_headers(table).get("compression") for table in ("orders", "small", "other")}
    assert headers == {"orders": "zstd", "small": None, "other": "gzip"}
    assert config.compression_of("other") is Compression.GZIP


@pytest.mark.parametrize(
    "change",
    [
        {"username": "a:SECRET"},
        {"load_url": "http://root:SECRET"},
        {"load_url": "h:SECRET"},
        {"load_url": "http://root:SECRET@fe1:8030"},
        {"load_url": "http://fe1:8030/?password=SECRET"},
        {"query_url": "mysql://root:SECRET/"},
        {"query_url": "SECRET://fe1"},
        {"redirect_hosts": ["root:SECRET"]},
        {"redirect_map": {"be1:8040": "root:SECRET"}},
        {"password": "SECRET\n"},
        {"password_environment": "SECRET!"},
    ],
)
def test_an_error_never_repeats_a_password_in_the_wrong_place(change: dict[str, Any]) -> None:
    with pytest.raises(OptionError) as failure:
        options(**change)
    assert "SECRET" not in str(failure.value)
    assert failure.value.advice


def test_an_empty_password_file_is_no_password(tmp_path: Path) -> None:
    place = tmp_path / "password"
    place.write_text("")
    with pytest.raises(OptionError, match="empty first line"):
        options(password_file=str(place)).read_password()
    place.write_bytes(b"\xef\xbb\xbfpw\r\n")
    assert options(password_file=str(place)).read_password() == "pw"
