"""Maxwell's messages with the members of its documentation, and a lane's input of them."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

Message = dict[str, Any]


def row(
    kind: str, data: dict[str, Any], *, table: str = "e", xid: int | None = 23396, commit: bool = False, **more: Any
) -> Message:
    """A message about a row of `test.e`, as Maxwell writes it; `more` has members such as xoffset or old."""
    members = {"database": "test", "table": table, "type": kind, "ts": 1477053217, "xid": xid, **more}
    members = {name: value for name, value in members.items() if value is not None}
    return members | ({"commit": True} if commit else {}) | {"data": data}


def transaction(xid: int, *rows: tuple[str, dict[str, Any]], table: str = "e") -> list[Message]:
    """The messages of a transaction with `output_xoffset`: numbers from 0, the commit in place of the last one."""
    last = len(rows) - 1
    return [
        row(kind, data, table=table, xid=xid, commit=number == last, xoffset=None if number == last else number)
        for number, (kind, data) in enumerate(rows)
    ]


def key(value: Message | None, columns: tuple[str, ...] = ("id",)) -> str | None:
    """The message's key in the format `hash`, the default."""
    if value is None or not (data := value.get("data")):
        return None
    names = {f"pk.{name}": data.get(name) for name in columns}
    return json.dumps({"database": value["database"], "table": value["table"], **(names or {"_uuid": "c0ffee"})})


def batch(*values: Any, offset: int = 7, partition: str = "0", columns: tuple[str, ...] = ("id",)) -> pa.RecordBatch:
    """A lane's input: one message a value; a text or None travels as it is."""
    texts = [value if isinstance(value, str | None) else json.dumps(value) for value in values]
    keys = [key(value, columns) if isinstance(value, dict) else None for value in values]
    return pa.RecordBatch.from_pydict(
        {
            "value": pa.array([text and text.encode() for text in texts], pa.binary()),
            "key": pa.array([text and text.encode() for text in keys], pa.binary()),
            "source_partition": pa.array([partition] * len(texts), pa.string()),
            "position": pa.array(range(offset, offset + len(texts)), pa.int64()),
        }
    )
