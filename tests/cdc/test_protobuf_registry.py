"""Apicurio Registry gives the texts of Protobuf's schemas: by Confluent's numbers and its own, with references."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import requests

pytest.importorskip("grpc_tools")

from starrocks_txn_sink import DebeziumAssembly, TransactionAssembly, TxnEventLines
from starrocks_txn_sink.errors import InputError, TransportError, UnknownSchema
from starrocks_txn_sink.sources import SchemaRegistry
from tests.cdc.registry import Registry
from tests.kafka.jars import NoMaven
from tests.support.message_batches import parse
from tests.support.protobuf_messages import ROW, TEXTS, change, framed

pytestmark = pytest.mark.timeout(600)


class Client:
    """Registers schemas as a serializer does."""

    def __init__(self, url: str) -> None:
        self._url = url

    def confluent(self, subject: str, text: str, references: list[Mapping[str, Any]] | None = None) -> int:
        """The number of a schema, by Confluent's interface."""
        body = {"schema": text, "schemaType": "PROTOBUF", "references": references or []}
        return int(self._sent(f"{self._url}/subjects/{subject}/versions", json=body)["id"])

    def own(self, name: str, text: str, references: list[Mapping[str, Any]] | None = None) -> int:
        """The global number of a schema, by Apicurio's own interface."""
        server = self._url.partition("/apis/")[0]
        kind = "application/create.extended+json"
        headers = {"Content-Type": kind, "X-Registry-ArtifactId": name, "X-Registry-ArtifactType": "PROTOBUF"}
        body = json.dumps({"content": text, "references": references or []})
        url = f"{server}/apis/registry/v2/groups/default/artifacts"
        return int(self._sent(url, data=body, headers=headers)["globalId"])

    def _sent(self, url: str, **content: Any) -> Any:
        reply = requests.post(url, timeout=30, **content)
        assert reply.ok, reply.text
        return reply.json()


def numbered(message: bytes, number: int, wide: bool = False) -> bytes:
    """A message with another number in front, in eight bytes of Apicurio's form."""
    return b"\0" + struct.pack(">q" if wide else ">i", number) + message[5:]


def test_schemas_by_both_numbers_and_with_references(tmp_path: Path) -> None:
    try:
        registry = Registry(tmp_path / "registry")
        with registry:
            check(registry.url)
    except NoMaven as missing:
        pytest.skip(str(missing))


def check(url: str) -> None:
    client, schemas = Client(url), SchemaRegistry(url=url, wait=2.0)
    changes = DebeziumAssembly(transactions="none", registry=schemas).lines
    first, second = (client.confluent("shop.public.orders-value", TEXTS[number]) for number in (1, 2))
    values = [numbered(change(1), first), numbered(change(2, schema=2, note="x"), second), numbered(change(3), first)]
    assert [json.loads(row) for row in parse(changes, values).events["row"].to_pylist()] == [
        {"id": 1, "day": "1970-01-02", "price": "0.01"},
        {"id": 2, "day": "1970-01-03", "price": "0.02", "note": "x"},
        {"id": 3, "day": "1970-01-04", "price": "0.03"},
    ]
    with pytest.raises(InputError, match=r"partition=0 offset=1: .* does not know schema 999"):
        parse(changes, [values[0], numbered(values[1], 999)])
    with pytest.raises(UnknownSchema):
        schemas.schema(999, apicurio=True, patient=False)
    with pytest.raises(TransportError, match="HTTP 404"):
        SchemaRegistry(url=f"{url}/no", wait=0.5).schema(first)
    lines = TransactionAssembly(lines=TxnEventLines(registry=schemas)).lines
    client.confluent("row", ROW[1])
    by_place = client.confluent("events", TEXTS[4], [{"name": ROW[0], "subject": "row", "version": 1}])
    client.own("row-of-its-own", ROW[1])
    of_group = {"groupId": "default", "artifactId": "row-of-its-own", "version": "1", "name": ROW[0]}
    by_name = client.own("events-of-their-own", TEXTS[4], [of_group])
    event = {"type": "DATA", "txn_id": "7", "table": "orders", "row": {"id": "7", "at": "2024-02-29T12:34:56Z"}}
    messages = parse(
        lines,
        [
            numbered(framed(4, event, 1, b"\x02\x02"), by_place),
            numbered(framed(4, event, 1, b"\x0a\x0a\x08TxnEvent"), by_name, wide=True),
        ],
    )
    row = '{"id":7,"at":"2024-02-29 12:34:56","price":null}'
    assert messages.events["row"].to_pylist() == [row, row]
