"""Messages as Debezium writes them, for tests: PostgreSQL and MySQL, with and without the schema around them."""

from __future__ import annotations

import json
from typing import Any

KAFKA = "topic STRING, partition INT, offset BIGINT, key BINARY, value BINARY"
Message = tuple[str, int, int, bytes | None, bytes | None]


def postgres(table: str, lsn: int, schema: str = "public") -> dict[str, Any]:
    return {"connector": "postgresql", "name": "shop", "db": "shop", "schema": schema, "table": table, "lsn": lsn}


def mysql(table: str, file: str, pos: int) -> dict[str, Any]:
    return {"connector": "mysql", "name": "shop", "db": "shop", "table": table, "file": file, "pos": pos}


def sql_server(table: str, lsn: str) -> dict[str, Any]:
    place = {"change_lsn": lsn, "commit_lsn": lsn, "event_serial_no": 1}
    return {"connector": "sqlserver", "name": "shop", "db": "shop", "schema": "dbo", "table": table, **place}


def oracle(table: str, scn: str) -> dict[str, Any]:
    place = {"txId": "6.28.807", "scn": scn, "commit_scn": scn, "rs_id": None, "ssn": 0, "redo_thread": 1}
    return {"connector": "oracle", "name": "shop", "db": "ORCLPDB1", "schema": "SHOP", "table": table, **place}


def db2(table: str, lsn: str) -> dict[str, Any]:
    place = {"change_lsn": lsn, "commit_lsn": lsn}
    return {"connector": "db2", "name": "shop", "db": "shop", "schema": "DB2INST1", "table": table, **place}


def mongodb(collection: str) -> dict[str, Any]:
    place = {"collection": collection, "ord": 1, "lsid": None, "txnNumber": None}
    return {"connector": "mongodb", "name": "shop", "db": "shop", **place}


def change(
    source: dict[str, Any], txn: str | None, order: int | None, after: Any, before: Any = None, op: str = "c"
) -> dict[str, Any]:
    transaction = {"id": txn, "total_order": order, "data_collection_order": 1} if txn else None
    return {"before": before, "after": after, "source": source, "op": op, "ts_ms": 1, "transaction": transaction}


def marker(status: str, txn: str, tables: dict[str, int] | None = None) -> dict[str, Any]:
    listed = [{"data_collection": name, "event_count": n} for name, n in (tables or {}).items()]
    count = sum(tables.values()) if tables is not None else None
    collections = listed if tables is not None else None
    return {"status": status, "id": txn, "event_count": count, "data_collections": collections, "ts_ms": 1}


def message(offset: int, value: Any, topic: str = "shop.public.orders", key: Any = None, partition: int = 0) -> Message:
    """A Kafka message; a `value` that is text or None travels as it is."""
    text = value if isinstance(value, str | None) else json.dumps(value)
    return (topic, partition, offset, json.dumps(key).encode() if key else None, text.encode() if text else None)


def with_schema(value: Any) -> dict[str, Any]:
    return {"schema": {"type": "struct", "fields": [{"field": "before"}], "optional": False}, "payload": value}
