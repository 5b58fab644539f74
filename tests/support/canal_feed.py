"""Canal's flat messages with the members of its FlatMessage, and a lane's input of them."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

Message = dict[str, Any]
Rows = list[dict[str, str | None]]


def flat(kind: str, data: Rows | None, old: Rows | None = None, *, table: str = "orders", **more: Any) -> Message:
    """A message about rows of `shop.orders`; `more` has other members."""
    return {
        "data": data,
        "database": "shop",
        "es": 1589373560000,
        "gtid": "",
        "id": 9,
        "isDdl": False,
        "mysqlType": {"id": "int(11)", "note": "varchar(32)"},
        "old": old,
        "pkNames": ["id"],
        "sql": "",
        "sqlType": {"id": 4, "note": 12},
        "table": table,
        "ts": 1589373560798,
        "type": kind,
        **more,
    }


def batch(*values: Any, offset: int = 7, partition: str = "shop-0") -> pa.RecordBatch:
    """A lane's input: one message a value; a text or None travels as it is."""
    texts = [value if isinstance(value, str | None) else json.dumps(value) for value in values]
    return pa.RecordBatch.from_pydict(
        {
            "value": pa.array([text and text.encode() for text in texts], pa.binary()),
            "source_partition": pa.array([partition] * len(texts), pa.string()),
            "position": pa.array(range(offset, offset + len(texts)), pa.int64()),
        }
    )
