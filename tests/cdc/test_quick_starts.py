"""The quick starts with Debezium run as printed: PostgreSQL, MariaDB in place of MySQL, and from Flink SQL."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cdc.connect import CONNECT, CONNECT_MARIADB, Connect
from tests.cdc.mariadb import MariaDB, NoMariaDB
from tests.cdc.postgres import NoPostgres, Postgres
from tests.cdc.registry import CONNECT_AVRO, Registry
from tests.kafka.broker import Broker
from tests.kafka.jars import SPARK, NoMaven, archives, fetched
from tests.support.quick_start import PASSWORD, Pipeline, Warehouse, blocks, statements
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

PAGE, FLINK, TABLES = "docs/start/debezium.md", "docs/start/flink.md", "docs/start/kafka.md"
(POSTGRES_TABLES, MYSQL_TABLES, POSTGRES_CHANGES, MYSQL_CHANGES, SELECT) = blocks(PAGE, "sql")
POSTGRES_CONNECTOR, MYSQL_CONNECTOR, _FOR_SYNC = blocks(PAGE, "json")
(SHOWN,) = blocks(PAGE, "text")


def fetch(pom: Path) -> str:
    """Spark's archives for Kafka, if those of `pom` are there too."""
    try:
        fetched(pom)
        return archives(SPARK)
    except NoMaven as missing:
        pytest.skip(str(missing))


def connector(printed: str, replacements: Mapping[str, str]) -> dict[str, str]:
    """The printed connector as properties, with the addresses of this machine."""
    for old, new in {"…": PASSWORD, **replacements}.items():
        assert old in printed, old
        printed = printed.replace(old, new)
    body = json.loads(printed)
    return {"name": body["name"], **body["config"]}


def shows_it(
    page: str,
    home: Path,
    broker: Broker,
    warehouse: Warehouse,
    jars: str,
    replacements: Mapping[str, str] | None = None,
    change: Callable[[], None] = lambda: None,
) -> None:
    """The page's pipeline writes what the page of Debezium shows, after `change` at the source."""
    (program,) = blocks(page, "python")
    warehouse.ask("DROP DATABASE IF EXISTS shop FORCE")  # another page's
    warehouse.run(blocks(TABLES, "sql")[0])
    places = {
        "broker:9092": broker.servers,
        '"spark.jars.packages": KAFKA': f'"spark.jars": {jars!r}',
        **(replacements or {}),
    }
    program = warehouse.placed(program)
    with Pipeline(program, home / Path(page).stem, places, environment=warehouse.environment) as pipeline:
        change()
        pipeline.wait(warehouse.shows(SELECT, SHOWN))


def wait_for_streams(connect: Connect, streams: Callable[[], object]) -> None:
    wait_until(streams, reason=connect.messages, alive=lambda: connect.running)


def start_postgresql(
    stack: ExitStack, home: Path, settings: Mapping[str, str] | None = None, pom: Path = CONNECT
) -> tuple[Broker, Callable[[], None]]:
    """The page's source and its connector, with other converters if there are `settings`; and the page's changes."""
    try:
        postgres = stack.enter_context(Postgres())
    except NoPostgres as missing:
        pytest.skip(str(missing))
    broker = stack.enter_context(Broker(home / "broker"))
    postgres.sql("CREATE DATABASE shop")
    postgres.sql(POSTGRES_TABLES.replace("…", PASSWORD), "shop")
    replacements = {'"postgres"': '"127.0.0.1"', '"5432"': f'"{postgres.port}"'}
    printed = connector(POSTGRES_CONNECTOR, replacements)
    if settings is not None:
        printed = {name: value for name, value in printed.items() if "converter" not in name} | dict(settings)
    connect = stack.enter_context(Connect(home / "connect", broker.servers, printed, pom))
    wait_for_streams(connect, lambda: postgres.sql("SELECT 1 FROM pg_replication_slots WHERE active"))

    def change() -> None:
        postgres.sql(POSTGRES_CHANGES, "shop")
        wait_for_streams(connect, lambda: "shop.transaction" in broker.topics())

    return broker, change


def test_postgresql_and_from_flink_sql(warehouse: Warehouse, tmp_path: Path) -> None:
    spark_kafka = fetch(CONNECT)
    with ExitStack() as stack:
        broker, change = start_postgresql(stack, tmp_path)
        shows_it(PAGE, tmp_path, broker, warehouse, spark_kafka, change=change)
        shows_it(FLINK, tmp_path, broker, warehouse, spark_kafka)


def test_postgresql_with_avro_and_a_registry(warehouse: Warehouse, tmp_path: Path) -> None:
    """The page with the converter and the argument that the guide prints."""
    spark_kafka = fetch(CONNECT_AVRO)
    with ExitStack() as stack:
        registry = stack.enter_context(Registry(tmp_path / "registry"))
        broker, change = start_postgresql(stack, tmp_path, registry.converters(), CONNECT_AVRO)
        places = {
            "import kafka_options": "import SchemaRegistry, kafka_options",
            "assemble=DebeziumAssembly(": f'assemble=DebeziumAssembly(registry=SchemaRegistry(url="{registry.url}"), ',
        }
        shows_it(PAGE, tmp_path, broker, warehouse, spark_kafka, places, change)


def test_mariadb_with_the_text_for_mysql(warehouse: Warehouse, tmp_path: Path) -> None:
    spark_kafka = fetch(CONNECT_MARIADB)
    with ExitStack() as stack:
        try:
            mariadb = stack.enter_context(MariaDB(tmp_path / "mariadb"))
        except NoMariaDB as missing:
            pytest.skip(str(missing))
        broker = stack.enter_context(Broker(tmp_path / "broker"))
        mariadb.sql(*statements(MYSQL_TABLES.replace("…", PASSWORD)))
        replacements = {
            "io.debezium.connector.mysql.MySqlConnector": "io.debezium.connector.mariadb.MariaDbConnector",
            '"mysql"': '"127.0.0.1"',
            '"3306"': f'"{mariadb.port}"',
            "broker:9092": broker.servers,
        }
        settings = connector(MYSQL_CONNECTOR, replacements)
        connect = stack.enter_context(Connect(tmp_path / "connect", broker.servers, settings, CONNECT_MARIADB))
        wait_for_streams(connect, lambda: any("Binlog" in str(row[4]) for row in mariadb.sql("SHOW PROCESSLIST")))

        def change() -> None:
            mariadb.sql(*statements(MYSQL_CHANGES))
            wait_for_streams(connect, lambda: "shop.transaction" in broker.topics())

        shows_it(PAGE, tmp_path, broker, warehouse, spark_kafka, {r"shop\.(public\..*": r"shop\.(shop\..*"}, change)
