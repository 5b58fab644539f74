"""What messages of real connectors, in all their modes, become in a row: with the converter's schema and without.

`python -m tests.cdc.types_run` writes the tables of docs/reference/debezium-types.md anew.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer

from starrocks_txn_sink import DebeziumAssembly
from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.rows.json_members import spans_of
from starrocks_txn_sink.rows.target import TargetColumn, parse_type
from starrocks_txn_sink.sources import SchemaRegistry
from starrocks_txn_sink.sources.formats.bare_values import BareValues, ConnectorModes
from tests.cdc import source_types as source
from tests.cdc.connect import CONNECT, CONNECT_MARIADB, Connect, for_postgres
from tests.cdc.mariadb import MariaDB
from tests.cdc.postgres import Postgres
from tests.cdc.registry import CONNECT_AVRO, Registry
from tests.cdc.source_types import Case, Modes
from tests.kafka.broker import Broker
from tests.kafka.jars import fetched
from tests.support.message_batches import parse, rows_of
from tests.support.waiting import wait_until

Row = dict[str, str]
"""The texts of a row's members."""
Seen = list[tuple[Row, Row, Row]]
"""For each connector the row with the converter's schema, without, and without under its declared modes."""

AS_JSON = {
    f"{part}.converter{name}": value
    for part in ("key", "value")
    for name, value in (("", "org.apache.kafka.connect.json.JsonConverter"), (".schemas.enable", "true"))
}


def postgres_rows(home: Path) -> Seen:
    """The rows of PostgreSQL. Raises NoMaven and NoPostgres where something is not there."""
    fetched(CONNECT)
    with ExitStack() as stack:
        postgres = stack.enter_context(Postgres())
        broker = stack.enter_context(Broker(home / "broker"))
        _create_types(postgres)
        connectors = _postgres_connectors(postgres)
        connect = stack.enter_context(Connect(home / "connect", broker.servers, connectors))
        topics = _insert(connect, broker, postgres, connectors)
        return _rows(connect, broker, topics, source.POSTGRES, source.POSTGRES_MODES)


def _create_types(postgres: Postgres) -> None:
    for extension in ("hstore", "citext", "ltree"):
        postgres.sql(f"CREATE EXTENSION {extension}")
    postgres.sql("CREATE TYPE mood AS ENUM ('sad', 'happy')")
    postgres.sql(f"CREATE TABLE types (id INT PRIMARY KEY, {', '.join(source.columns(source.POSTGRES))})")
    postgres.sql(f"INSERT INTO types VALUES (1, {source.values(source.POSTGRES)})")


def _postgres_connectors(postgres: Postgres) -> list[dict[str, str]]:
    return [
        for_postgres(postgres.port)
        | {"name": prefix, "topic.prefix": prefix, "slot.name": prefix, "publication.name": prefix}
        | {"provide.transaction.metadata": "false", "topic.creation.default.partitions": "1"}
        | {"table.include.list": "public.types", "include.unknown.datatypes": "true"}
        | AS_JSON
        | modes
        for prefix, modes in _named(source.POSTGRES_MODES)
    ]


def _insert(connect: Connect, broker: Broker, postgres: Postgres, connectors: Sequence[Mapping[str, str]]) -> list[str]:
    """Insert a row once all connectors stream; the topics of their messages."""
    topics = [f"{connector['name']}.public.types" for connector in connectors]
    wait_for(connect, lambda: {*topics} <= broker.topics())
    slots = "SELECT 1 FROM pg_replication_slots WHERE active"
    wait_for(connect, lambda: len(postgres.sql(slots)) == len(connectors))
    postgres.sql(f"INSERT INTO types VALUES (2, {source.values(source.POSTGRES)})")
    return topics


def registered_rows(home: Path) -> list[tuple[list[Row], ...]]:
    """The rows of PostgreSQL for each connector: of JSON with its schema, and of the forms of a registry's converters.

    Raises NoMaven and NoPostgres where something is not there.
    """
    fetched(CONNECT_AVRO)
    with ExitStack() as stack:
        registry = stack.enter_context(Registry(home / "registry"))
        postgres = stack.enter_context(Postgres())
        broker = stack.enter_context(Broker(home / "broker"))
        _create_types(postgres)
        forms = _forms(registry)
        named_connectors = [
            (f"{form}_{connector['name']}", connector, forms[form])
            for number, connector in enumerate(_postgres_connectors(postgres))
            for form in ("json", "avro", ("wide", "member")[number % 2])
        ]
        connectors = [
            connector | {"name": name, "topic.prefix": name, "slot.name": name, "publication.name": name} | converters
            for name, connector, converters in named_connectors
        ]
        connect = stack.enter_context(Connect(home / "connect", broker.servers, connectors, CONNECT_AVRO))
        received = messages(connect, broker, _insert(connect, broker, postgres, connectors))
        by_registry = DebeziumAssembly(transactions="none", registry=SchemaRegistry(url=registry.url))
        parsed = [
            _parsed(values, _BY_JSON if topic.startswith("json") else by_registry) for topic, values in received.items()
        ]
        return list(zip(parsed[::3], parsed[1::3], parsed[2::3], strict=True))


def _forms(registry: Registry) -> dict[str, dict[str, str]]:
    """Converters: JSON with its schema, Avro with Confluent's number and with Apicurio's, JSON with a member for it."""
    avro = registry.converters()
    own_number = {name: value for name, value in avro.items() if not name.endswith(("as-confluent", "use-id"))}
    return {"json": {}, "avro": avro, "wide": own_number, "member": registry.converters("ExtJsonConverter")}


def mariadb_rows(home: Path) -> Seen:
    """The rows of MariaDB. Raises NoMaven and NoMariaDB where something is not there."""
    fetched(CONNECT_MARIADB)
    with ExitStack() as stack:
        mariadb = stack.enter_context(MariaDB(home / "mariadb"))
        broker = stack.enter_context(Broker(home / "broker"))
        cases = source.MARIADB
        table = f"CREATE TABLE shop.types (id INT PRIMARY KEY, {', '.join(source.columns(cases))}) CHARSET utf8mb4"
        mode, row = "SET sql_mode = '', time_zone = '+00:00'", f"{source.values(cases)})"
        insert = "INSERT INTO shop.types VALUES "
        mariadb.sql("CREATE DATABASE shop", mode, table, f"{insert} (1, {row}")
        connectors = [
            {
                "name": prefix,
                "topic.prefix": prefix,
                "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
                "database.hostname": "127.0.0.1",
                "database.port": str(mariadb.port),
                "database.user": "root",
                "database.password": "",
                "database.server.id": str(5000 + number),
                "database.include.list": "shop",
                "schema.history.internal.kafka.bootstrap.servers": broker.servers,
                "schema.history.internal.kafka.topic": f"history-{prefix}",
                "topic.creation.default.partitions": "1",
                "topic.creation.default.replication.factor": "1",
            }
            | AS_JSON
            | modes
            for number, (prefix, modes) in enumerate(_named(source.MARIADB_MODES))
        ]
        connect = stack.enter_context(Connect(home / "connect", broker.servers, connectors, CONNECT_MARIADB))
        topics = [f"{connector['name']}.shop.types" for connector in connectors]
        wait_for(connect, lambda: {*topics} <= broker.topics())
        wait_for(connect, lambda: str(mariadb.sql("SHOW PROCESSLIST")).count("Binlog Dump") == len(connectors))
        mariadb.sql(mode, f"{insert} (2, {row}")
        return _rows(connect, broker, topics, cases, source.MARIADB_MODES)


def _named(modes: Sequence[Modes]) -> Iterator[tuple[str, Modes]]:
    return ((f"modes{number}", settings) for number, settings in enumerate(modes))


def wait_for(connect: Connect, reached: Any) -> None:
    wait_until(reached, reason=connect.messages, alive=lambda: connect.running)


def _rows(
    connect: Connect, broker: Broker, topics: Sequence[str], cases: Sequence[Case], modes: Sequence[Modes]
) -> Seen:
    """The rows of each topic, with the schema, without, and without under the connector's modes."""
    rows: Seen = []
    for values, settings in zip(messages(connect, broker, topics).values(), modes, strict=True):
        with_schema, without = _parsed(values), _parsed([_payload(value) for value in values])
        declared = [_declared(row, cases, settings) for row in without]
        rows.append((_both(*with_schema), _both(*without), _both(*declared)))
    return rows


def _declared(row: Row, cases: Sequence[Case], settings: Modes) -> Row:
    """The values without a schema in columns of their types, by the declared modes; a text without quotes: refused."""
    types = {f"c{number}": _target(case.type) for number, case in enumerate(cases)}
    modes: Any = settings["time.precision.mode"], settings["decimal.handling.mode"]

    def loaded(name: str, text: str) -> str:
        target = types[name]
        if target is None:
            return text
        convert = BareValues(ConnectorModes(*modes), lambda _: [TargetColumn(name, parse_type(target))])
        payload = f',{{"{name}":{text}}}'
        try:
            batch = convert(pa.RecordBatch.from_pydict({"table": ["types"], "payload": [payload]}))
        except InputError:
            return REFUSED
        return str(batch["payload"][0].as_py())[len(f',{{"{name}":') : -1]

    return {name: loaded(name, text) for name, text in row.items()}


REFUSED = "refused"
_TARGETS = {
    r"date\b(?!time)": "date",
    r"timestamp(\(\d\))?(\[\])?$|datetime": "datetime",
    r"numeric|decimal|money": "decimal(38,10)",
    r"bigint unsigned|bit(?!\(1\))": "bigint(20) unsigned",
}


def _target(source_type: str) -> str | None:
    """The type of StarRocks for such values; None where a number and a text say what they are."""
    for pattern, target in _TARGETS.items():
        if re.match(pattern, source_type, re.IGNORECASE):
            return f"array<{target}>" if source_type.endswith("[]") else target
    return None


def messages(connect: Connect, broker: Broker, topics: Sequence[str]) -> dict[str, list[bytes]]:
    """The two messages of each topic: of a snapshot and of an insert."""
    consumer = Consumer({"bootstrap.servers": broker.servers, "group.id": "types", "auto.offset.reset": "earliest"})
    messages: dict[str, list[bytes]] = {topic: [] for topic in topics}
    consumer.subscribe([*topics])

    def take() -> bool:
        message = consumer.poll(0.5)
        if message is not None and not message.error():
            messages[str(message.topic())].append(message.value() or b"")
        return all(len(values) == 2 for values in messages.values())

    try:
        wait_for(connect, take)
    finally:
        consumer.close()
    return messages


def _both(snapshot: Row, changed: Row) -> Row:
    """The texts of a snapshot and of a change, which are mostly the same."""
    return {
        name: text if text == changed[name] else f"{text}` in a snapshot, `{changed[name]}"
        for name, text in snapshot.items()
    }


def _payload(message: bytes) -> bytes:
    """The message as the converter writes it without a schema."""
    ((start, end),) = [(start, end) for name, _, start, end in spans_of(message.decode()) if name == "payload"]
    return message.decode()[start:end].encode()


_BY_JSON = DebeziumAssembly(transactions="none")


def _parsed(values: Sequence[bytes], assembly: DebeziumAssembly = _BY_JSON) -> list[Row]:
    rows = rows_of(parse(assembly.lines, values, topic="types", source_partition="types"))
    return [{name: row[start:end] for name, _, start, end in spans_of(row) if name != "id"} for row in rows]


# --- the table ---


def table(cases: Sequence[Case], modes: Sequence[Modes], rows: Seen) -> str:
    """A Markdown table: what each shown value becomes, by the modes on which it depends; what stays is below."""
    lines = ["| type | value | row with the schema | row without |", "|---|---|---|---|"]
    plain: list[str] = []
    for number, case in enumerate(cases):
        outcomes = ([_short(kinds[at][f"c{number}"]) for kinds in rows] for at in range(2))
        with_schema, without = (_outcome(case, modes, texts) for texts in outcomes)
        if not case.shown:
            continue
        if with_schema == without and without.strip('`"') == case.value.strip("'"):
            plain.append(f"`{case.type}` {without}")
            continue
        without = "the same" if without == with_schema else without
        cells = [f"`{case.type}`", f"`{case.value}`", with_schema, without]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, "", f"As at the source: {'; '.join(plain)}."])


def _outcome(case: Case, modes: Sequence[Modes], texts: Sequence[str]) -> str:
    """The text, or the texts by the values of the setting for such types, which must tell them apart."""
    if len({*texts}) == 1:
        return f"`{texts[0]}`"
    (setting,) = (name for pattern, name in _SETTINGS.items() if re.match(pattern, case.type, re.IGNORECASE))
    by_value: dict[str, set[str]] = {}
    for mode, text in zip(modes, texts, strict=True):
        by_value.setdefault(mode[setting], set()).add(text)
    assert all(len(numbers) == 1 for numbers in by_value.values()), f"{setting} alone does not explain {texts}."
    return _by_text({value: min(numbers) for value, numbers in by_value.items()})


_SETTINGS = {
    r"date|time": "time.precision.mode",
    r"numeric|decimal|money": "decimal.handling.mode",
    r"bytea|(var)?binary|blob": "binary.handling.mode",
    r"interval": "interval.handling.mode",
    r"hstore": "hstore.handling.mode",
    r"bigint unsigned": "bigint.unsigned.handling.mode",
}
_LONGEST = 80  # of a text in the table


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:24]}…{text[-4:]}"


def _by_text(texts: Mapping[str, str]) -> str:
    """Each text with its values in brackets; the one of most values, if it has three or more, last and without them."""
    by_text: dict[str, list[str]] = {}
    for value, text in texts.items():
        by_text.setdefault(text, []).append(value)
    usual = max(by_text, key=lambda text: len(by_text[text]))
    last = [f"else `{usual}`"] if len(by_text[usual]) > 2 else []
    named_texts = [f"`{text}` ({', '.join(values)})" for text, values in by_text.items() if not last or text != usual]
    return "; ".join(named_texts + last)


# --- the page ---

PAGE = Path("docs/reference/debezium-types.md")


def page_with(name: str, lines: str) -> str:
    """The page with these lines between the marks `seen: name` and `end`."""
    mark = f"<!-- seen: {name} -->\n"
    before, _, tail = PAGE.read_text(encoding="utf-8").partition(mark)
    return f"{before}{mark}{lines}\n<!-- end -->{tail.partition('<!-- end -->')[2]}"


def main() -> None:
    """Write the tables of the page anew."""
    for name, cases, modes, rows in (
        ("postgres", source.POSTGRES, source.POSTGRES_MODES, postgres_rows),
        ("mariadb", source.MARIADB, source.MARIADB_MODES, mariadb_rows),
    ):
        with tempfile.TemporaryDirectory(prefix="types-", ignore_cleanup_errors=True) as folder:
            PAGE.write_text(page_with(name, table(cases, modes, rows(Path(folder)))), encoding="utf-8")


if __name__ == "__main__":
    main()
