"""The events of a format for messages of changes, as its tests read them."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from starrocks_txn_sink.sources.formats.raw_format import ParsedMessages, RawFormat
from starrocks_txn_sink.sources.formats.tables import OWN_NAME, TableMapping


def parse(kind: type[RawFormat], messages: pa.RecordBatch, **settings: Any) -> ParsedMessages:
    return kind(**{"tables": TableMapping(OWN_NAME), **settings}).parse(messages)


def rows_of(kind: type[RawFormat], messages: pa.RecordBatch, **settings: Any) -> list[tuple[Any, ...]]:
    """Position, number in the message, table, op and row of each event."""
    events = parse(kind, messages, **settings).events.to_pylist()
    return [
        (event["position"], event["seq"], event["table"], event["op"], json.loads(event["row"])) for event in events
    ]
