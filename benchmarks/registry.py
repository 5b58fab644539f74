"""Debezium's messages as JSON, and as Avro and Protobuf with a registry, in the lanes → a null server, in turns.

    python -m benchmarks.registry [--transactions 20000] [--batch 200000] [--rounds 5]

The messages are those of `benchmarks.debezium`, without TxnEvents; the registry is in memory. CPU seconds are those of
Spark and the broker together. Needs the broker that `make servers` fetches; without Maven it says so and fails.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import struct
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
from confluent_kafka import Producer
from google.protobuf import json_format, message_factory

from benchmarks.debezium import MARKERS, PARTITIONS, ROWS, TABLES, messages
from benchmarks.measure import Variant, report, say, take_turns
from benchmarks.null_server import NullServer
from benchmarks.spark import session, write_all
from starrocks_txn_sink import DebeziumAssembly
from starrocks_txn_sink.sources import kafka_options
from starrocks_txn_sink.sources.formats.protobuf_files import compile_file
from tests.kafka.broker import Broker
from tests.kafka.jars import SPARK, NoMaven, archives

FORMS = ("json", "avro", "protobuf")
LONG, TEXT = "long", "string"
_TIMES = {"ts_ms": LONG, "ts_us": LONG, "ts_ns": LONG}
_OPTIONAL_TIMES = {name: ["null", LONG] for name in _TIMES}
_TABLE_COLUMNS = (
    {"order_id": LONG, "customer": TEXT, "total": TEXT},
    {"item_id": LONG, "order_id": LONG, "price": TEXT, "note": TEXT},
)


def record(name: str, /, **fields: Any) -> dict[str, Any]:
    listed = [{"name": field, "type": kind} for field, kind in fields.items()]
    return {"type": "record", "name": name, "fields": listed}


def envelope(table: str, /, **columns: Any) -> dict[str, Any]:
    texts = dict.fromkeys(("version", "connector", "name", "snapshot", "db", "sequence", "schema", "table"), TEXT)
    source = record("Source", **texts, txId=LONG, lsn=LONG, xmin=["null", LONG], **_TIMES)
    block = record("Block", id=TEXT, total_order=LONG, data_collection_order=LONG)
    value = {"before": ["null", record("Value", **columns)], "after": ["null", "Value"], "source": source}
    return record("Envelope", **value, transaction=["null", block], op=TEXT, **_OPTIONAL_TIMES) | {
        "namespace": f"shop.public.{table}"
    }


_COLLECTION = record("Collection", data_collection=TEXT, event_count=LONG)
_MARKER = record(
    "Marker",
    status=TEXT,
    id=TEXT,
    event_count=["null", LONG],
    data_collections=["null", {"type": "array", "items": _COLLECTION}],
    ts_ms=LONG,
)
SCHEMAS = {1: _MARKER} | {
    number: envelope(table, **columns)
    for number, (table, columns) in enumerate(zip(TABLES, _TABLE_COLUMNS, strict=True), 2)
}
NUMBERS = {MARKERS: 1} | {f"shop.public.{table}": number for number, table in enumerate(TABLES, 2)}


_OF_PROTOBUF = 10
"""What a schema's number is greater by in Protobuf."""


class Schemas:
    """A registry in memory."""

    def schema(self, number: int, **_: bool) -> tuple[str, str, tuple[tuple[str, str], ...]]:
        if number > _OF_PROTOBUF:
            return "PROTOBUF", protobuf_text(SCHEMAS[number - _OF_PROTOBUF]), ()
        return "AVRO", json.dumps(SCHEMAS[number]), ()


def protobuf_text(schema: dict[str, Any]) -> str:
    """A schema of Avro as Confluent's converter writes it of Protobuf, with `optional.for.nullables`."""
    package = f"package {schema['namespace']};\n" if "namespace" in schema else ""
    return f'syntax = "proto3";\n{package}{_message(schema)}'


def _message(schema: dict[str, Any]) -> str:
    lines = list[str]()
    for number, field in enumerate(schema["fields"], 1):
        optional = isinstance(field["type"], list)
        kind = field["type"][-1] if optional else field["type"]
        label = "optional " if optional else ""
        if isinstance(kind, dict) and kind["type"] == "array":
            label, kind = "repeated ", kind["items"]
        if isinstance(kind, dict):
            lines.append(_message(kind))
            kind = kind["name"]
        lines.append(f"{label}{_NAMES.get(kind, kind)} {field['name']} = {number};")
    return f"message {schema['name']} {{\n{chr(10).join(lines)}\n}}"


_NAMES = {LONG: "int64", TEXT: "string"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transactions", type=int, default=20_000, help="of ten rows (default %(default)s)")
    parser.add_argument("--batch", type=int, default=200_000, help="messages of a micro-batch (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="measured runs of each variant (default %(default)s)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="registry-") as folder:
        home = Path(folder)
        with Broker(home / "broker", heap="1g") as broker, NullServer() as server:
            names = [f"shop.public.{table}" for table in TABLES]
            broker.create(
                {f"{form}.{name}": 1 if name == MARKERS else PARTITIONS for form in FORMS for name in (*names, MARKERS)}
            )
            fill(broker.servers, arguments.transactions)
            spark = session(**{"spark.jars": archives(SPARK)})
            checkpoint = home / "checkpoint"

            def run(form: str, pattern: str, whole: bool) -> None:
                topics = kafka_options(
                    broker.servers,
                    subscribePattern=rf"{form}\.shop\.{pattern}",
                    startingOffsets="earliest",
                    maxOffsetsPerTrigger=arguments.batch,
                )
                assembly = DebeziumAssembly(
                    transactions="whole" if whole else "none", registry=None if form == "json" else Schemas()
                )
                frame = spark.readStream.format("kafka").options(**topics).load()
                write_all(frame, server.load_url, assembly, checkpoint)

            def clean() -> None:
                shutil.rmtree(checkpoint, ignore_errors=True)

            variants = [
                Variant(f"{title}, {form}", arguments.transactions * ROWS, partial(run, form, pattern, whole), clean)
                for title, pattern, whole in (
                    ("change by change", r"public\..*", False),
                    ("whole transactions", ".*", True),
                )
                for form in FORMS
            ]
            take_turns(variants, arguments.rounds)
            report("Debezium's messages as JSON, as Avro and as Protobuf", variants)
            for variant in variants:
                rates = sorted(round(variant.rows / sample.cpu_seconds / 1000) for sample in variant.samples)
                say(f"{variant.name}: k rows a CPU second by round, lowest to highest: {rates}")
            for place, variant in enumerate(variants):
                json_form = variants[place - place % len(FORMS)]
                if variant is not json_form:
                    share = variant.per_cpu / json_form.per_cpu
                    say(f"{variant.name}: {share:.2f} of JSON's rows a CPU second")
            spark.stop()


def fill(servers: str, transactions: int) -> None:
    """Send the same messages in all forms."""
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 50})
    parsed = {number: fastavro.parse_schema(schema) for number, schema in SCHEMAS.items()}
    classes = {number: _class_of(protobuf_text(schema)) for number, schema in SCHEMAS.items()}
    sizes = dict.fromkeys(FORMS, 0)
    for _, topic, partition, value in messages(transactions, PARTITIONS, events=False):
        number = NUMBERS[topic]
        content = io.BytesIO(b"\0" + struct.pack(">i", number))
        content.seek(0, io.SEEK_END)
        fastavro.schemaless_writer(content, parsed[number], value)
        protobuf = json_format.ParseDict(value, classes[number]()).SerializeToString()
        framed = b"\0" + struct.pack(">i", number + _OF_PROTOBUF) + b"\0" + protobuf
        for form, message in zip(FORMS, (json.dumps(value).encode(), content.getvalue(), framed), strict=True):
            sizes[form] += len(message) if topic != MARKERS else 0
            while True:
                try:
                    producer.produce(f"{form}.{topic}", message, partition=partition)
                    break
                except BufferError:
                    producer.poll(1)
    if producer.flush(120):
        raise TimeoutError("The broker did not take all messages.")
    rows = transactions * ROWS
    say(f"{rows} rows; bytes a change event: " + ", ".join(f"{form} {size // rows}" for form, size in sizes.items()))


def _class_of(text: str) -> Any:
    """Google's class of a text's message."""
    return message_factory.GetMessageClass(compile_file(text).messages[0])


if __name__ == "__main__":
    try:
        main()
    except NoMaven as missing:
        sys.exit(f"registry: not run. {missing}")
