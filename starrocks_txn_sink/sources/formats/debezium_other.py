"""Debezium's messages that are neither a change of a row nor a marker: what each is, and what helps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from starrocks_txn_sink.sources.formats.debezium_json import PAYLOAD
from starrocks_txn_sink.sources.formats.json_text import members_of
from starrocks_txn_sink.sources.formats.raw_format import MALFORMED_HINT

TRUNCATE: Final = "t"
"""The sink never empties a table itself. `TRUNCATE TABLE` is outside of the transaction that loads the rows, and has no
label: a driver that has lost its job could send it after the next driver has loaded rows. The message has no key, so
change by change nothing orders it among the rows of other partitions."""
LOGICAL: Final = "m"
"""The operation of a logical message (`pg_logical_emit_message`)."""
LOGICAL_COLLECTION: Final = "LOGICAL_DECODING_MESSAGE"
"""The table under which an END counts logical messages (Debezium's LogicalDecodingMessageMonitor)."""

TRUNCATE_HINT: Final = (
    'Pass on_truncate="ignore" until the query is behind it, then run `starrocks-txn-sink resync` for the table, or '
    'truncate it in StarRocks and have Debezium snapshot it again (docs/guides/debezium.md, "TRUNCATE"); for the next '
    "time leave skipped.operations at its default, t."
)
_PAGE: Final = 'docs/guides/debezium.md, "Odd events"'
_ENVELOPE: Final = frozenset({"before", "after", "op", "source"})
_HEARTBEAT: Final = frozenset({"ts_ms", "ts_us", "ts_ns"})
_SCHEMA_CHANGE: Final = frozenset({"ddl", "tableChanges"})
_SIGNAL: Final = frozenset({"id", "type", "data"})
_SIGNALS: Final = frozenset(
    {"execute-snapshot", "stop-snapshot", "pause-snapshot", "resume-snapshot", "log", "schema-changes"}
)
_NOTIFICATION: Final = frozenset({"id", "type", "aggregate_type", "additional_data"})


@dataclass(frozen=True, slots=True)
class OtherMessage:
    """A message that gives no event. With `passed` it is left out, as it has no row; otherwise it is malformed."""

    what: str = "(not exactly one JSON object, a field of another type, or an unknown operation)"
    hint: str = MALFORMED_HINT
    passed: bool = False


_IN_TOPIC: Final = (
    ' Messages that are in the topic already stay as they are: pass on_malformed="drop" until the query is behind '
    "them, then run `starrocks-txn-sink resync` for their tables, or have Debezium snapshot them."
)
_PASSED: Final = OtherMessage(passed=True)
_DELETE: Final = OtherMessage(
    "but a delete that has no row",
    "PostgreSQL: give the table a primary key or ALTER TABLE … REPLICA IDENTITY FULL; or pass "
    f'deleted_row="key", if the message has a key.{_IN_TOPIC}',
)
_WITHOUT_TABLE: Final = OtherMessage(
    "but a change whose source names no table, as MongoDB's connector writes them",
    "MongoDB's connector is not read: its rows are documents as text, and its collections no tables "
    '(docs/guides/debezium.md, "Other connectors").',
)
_MARKER: Final = OtherMessage(
    "but a transaction marker",
    "Read its topic with parse_debezium_transactions; for DebeziumAssembly give the last part of the topic's name as "
    "transaction_topic.",
)
_CHANGE: Final = OtherMessage(
    "but a change event", "Read its topic with parse_debezium, and the transaction topic alone here."
)
_BINARY: Final = OtherMessage(
    "but binary: it begins as messages of a schema registry do (Avro, Protobuf)",
    "Pass registry=SchemaRegistry(…), in sync's file [assembly.registry] with url; or set the connector's "
    "value.converter to org.apache.kafka.connect.json.JsonConverter.",
)
_STRUCT: Final = OtherMessage(
    "but the text of Connect's StringConverter (Struct{…}), which nothing can read back",
    f"Set the connector's value.converter to org.apache.kafka.connect.json.JsonConverter.{_IN_TOPIC}",
)
_TEXT: Final = OtherMessage(
    "but one JSON text, perhaps with a message inside: a converter has written JSON as JSON once more",
    f"Set one JsonConverter at the connector and none behind it, or take the text apart before the sink.{_IN_TOPIC}",
)
_CLOUD_EVENT: Final = OtherMessage(
    "but a CloudEvent",
    "Set the connector's value.converter to org.apache.kafka.connect.json.JsonConverter: CloudEvents are not read."
    f"{_IN_TOPIC}",
)
_UNWRAPPED: Final = OtherMessage(
    "but a JSON object without Debezium's envelope: no op, no source",
    "Take the transform ExtractNewRecordState out of the connector, and leave topics of other producers out: only the "
    f"envelope says of which transaction a row is ({_PAGE}).{_IN_TOPIC}",
)


_BY_START: Final = {b"\0": _BINARY, b"Struct{": _STRUCT, b'"': _TEXT}


def judge_other(value: pa.Scalar, *, markers: bool) -> OtherMessage:
    """What a message is that is not a sound change, or with `markers` not a sound marker."""
    content = value.as_buffer().to_pybytes()
    for start, other in _BY_START.items():
        if content.startswith(start):
            return other
    try:
        fields = members_of(content.decode(), PAYLOAD)
    except (ValueError, IndexError):
        return OtherMessage()
    return _judge({name: field for name, (field, _) in fields.items()}, markers=markers)


def _judge(fields: Mapping[str, Any], *, markers: bool) -> OtherMessage:
    operation = fields.get("op")
    logical = operation == LOGICAL and fields.get("transaction") is None
    if logical or (operation is None and _has_no_row(fields)):
        return _PASSED
    if markers:
        return _CHANGE if operation is not None and "source" in fields else OtherMessage()
    if operation is not None and isinstance(source := fields.get("source"), Mapping) and source.get("table") is None:
        return _WITHOUT_TABLE
    if operation == "d" and fields.get("before") is None and fields.get("source") is not None:
        return _DELETE
    if operation is None and fields.get("status") is not None and fields.get("id") is not None:
        return _MARKER
    if "specversion" in fields:
        return _CLOUD_EVENT
    return OtherMessage() if fields.keys() & _ENVELOPE else _UNWRAPPED


def _has_no_row(fields: Mapping[str, Any]) -> bool:
    """Whether these are the members of a heartbeat, a schema change, a signal or a notification."""
    names = fields.keys()
    if not names or names <= _HEARTBEAT or names >= _SCHEMA_CHANGE:
        return bool(names)
    signal = names <= _SIGNAL and fields.get("type") in _SIGNALS and isinstance(fields.get("data"), dict)
    return signal or names - {"timestamp"} == _NOTIFICATION
