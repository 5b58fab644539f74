"""Messages of Protobuf with the schemas of a registry: Debezium's rows, keys and markers, and TxnEvents."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

pytest.importorskip("grpc_tools")

from starrocks_txn_sink import DebeziumAssembly, TransactionAssembly, TxnEventLines
from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.sources.formats.raw_format import RawFormat
from starrocks_txn_sink.sources.formats.registered import as_json
from tests.support import avro_messages
from tests.support.message_batches import parse, rows_of
from tests.support.protobuf_messages import TEXTS, Schemas, change, framed, head

pytestmark = pytest.mark.usefixtures("loop")


class Both(Schemas):
    """The schemas 11 and 12 are Avro's."""

    def schema(self, number: int, **terms: bool) -> Any:
        return avro_messages.Schemas().schema(number - 10, **terms) if number > 10 else super().schema(number, **terms)


def changes(registry: Schemas | None = None, **terms: Any) -> RawFormat:
    return DebeziumAssembly(transactions="none", registry=registry or Schemas(), **terms).lines


def test_rows_of_several_schemas_in_one_batch() -> None:
    values = [change(1), None, change(-2, schema=2, note="größe"), change(3, schema=2), change(4, op="d")]
    parsed = parse(changes(), values)
    assert rows_of(parsed) == [
        '{"id":1,"day":"1970-01-02","price":"0.01"}',
        '{"id":-2,"day":"1970-01-03","price":"-0.02","note":"größe"}',
        '{"id":3,"day":"1970-01-04","price":"0.03","note":null}',
        '{"id":4,"day":"1970-01-05","price":"0.04"}',
    ]
    assert parsed.events["op"].to_pylist() == ["c", "c", "c", "d"]
    assert len(parsed.schemas["orders"]) == 2  # of which new columns get their types


def test_absent_values_are_null_and_zeros_are_zeros() -> None:
    source = {"name": "shop", "db": "shop", "schema": "public", "table": "orders"}
    parsed = parse(changes(), [framed(2, {"after": row, "source": source, "op": "c"}) for row in ({}, {"note": ""})])
    assert rows_of(parsed) == [
        '{"id":0,"day":null,"price":null,"note":null}',
        '{"id":0,"day":null,"price":null,"note":""}',
    ]


def test_protobuf_and_avro_in_one_batch() -> None:
    values = [change(1), _shifted(avro_messages.change(2)), None, change(3), _shifted(avro_messages.change(4))]
    assert [json.loads(row)["id"] for row in rows_of(parse(changes(Both()), values))] == [1, 2, 3, 4]


def _shifted(message: bytes) -> bytes:
    return message[:4] + bytes([message[4] + 10]) + message[5:]


@pytest.mark.parametrize("deleted_row", ["before", "key"])
def test_keys_have_schemas_of_their_own(deleted_row: Any) -> None:
    keys = [framed(3, {"id": number}) for number in (1, 2)]
    parsed = parse(changes(deleted_row=deleted_row), [change(1), change(2, op="d")], keys)
    assert {names for _, _, _, names in parsed.keys} == {("id",)}
    if deleted_row == "key":
        assert rows_of(parsed)[1] == '{"id":2}'


def test_a_schema_is_asked_for_once() -> None:
    schemas = Schemas()
    lines = changes(schemas)
    for _ in range(3):
        parse(lines, [change(1), change(2)])
    assert schemas.asked == [1]


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"{}",
        head(1, b""),
        change(1)[:-1],
        change(1) + b"x",
        head(1, b"\x02\x08") + b"\0",
        head(1, b"\x01") + b"\0",
    ],
)
def test_a_message_that_does_not_fit_its_schema(wrong: bytes) -> None:
    values = [change(1), wrong, change(2)]
    with pytest.raises(InputError, match=r"topic=shop.public.orders partition=0 offset=1") as error:
        parse(changes(), values)
    framed = wrong.startswith(head(1, b""))
    assert ("does not fit its schema (1 of the registry)" in error.value.message) is framed
    assert ("does not begin with the number of a schema" in error.value.message) is not framed
    parsed = parse(changes(on_malformed="drop"), values)
    assert (parsed.malformed, len(rows_of(parsed))) == (1, 2)


def test_schemas_that_cannot_be_read_are_named_with_the_place() -> None:
    with pytest.raises(InputError, match=r"offset=1: The schema registry does not know schema 9"):
        parse(changes(), [change(1), head(9) + b"\x08\x02"])
    with pytest.raises(InputError, match=r"offset=1: Schema 5 .* writes NULL as zero") as error:
        parse(changes(), [change(1), change(2, schema=5)])
    assert "optional.for.nullables=true" in error.value.advice
    assert 'on_malformed="drop"' in error.value.advice
    values = [change(1), head(9) + b"\x08\x02", change(2, schema=5), change(3), change(4, schema=5)]
    for _ in range(2):
        parsed = parse(changes(on_malformed="drop"), values)
        assert (parsed.malformed, [json.loads(row)["id"] for row in rows_of(parsed)]) == (3, [1, 3])


def test_a_registry_s_broken_text_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TEXTS, 6, 'syntax = "proto3"; message')
    with pytest.raises(InputError, match=r"offset=0: Schema 6 of the schema registry is no schema of Protobuf"):
        parse(changes(), [head(6) + b"\x08\x02"])


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc_tools", None)
    with pytest.raises(OptionError, match="protoc is not installed") as error:
        parse(changes(), [change(1)])
    assert "starrocks-txn-sink[protobuf]" in error.value.advice


def test_txn_events_by_place_and_by_name() -> None:
    """TxnEvent is the second message of its file; a row is a text, or a message whose values StarRocks reads."""
    row = {"id": "7", "at": "2024-02-29T12:34:56.5Z", "price": {"value": "BNI=", "scale": 2}}
    events: list[dict[str, Any]] = [
        {"type": "BEGIN", "txn_id": "7"},
        {"type": "DATA", "txn_id": "7", "table": "orders", "row": row},
        {"type": "END", "txn_id": "7"},
    ]
    confluent, apicurio = b"\x02\x02", b"\x0a\x0a\x08TxnEvent"
    lines = TransactionAssembly(lines=TxnEventLines(registry=Schemas())).lines
    for front in (confluent, apicurio):
        for wide in (False, True):
            values = [framed(4, event, 1, front) for event in events]
            parsed = parse(lines, [b"\0" * 4 + value if wide else value for value in values])
            assert parsed.events["type"].to_pylist() == ["BEGIN", "DATA", "END"]
            assert parsed.events["row"].to_pylist() == [
                None,
                '{"id":7,"at":"2024-02-29 12:34:56.500000","price":"12.34"}',
                None,
            ]


def test_several_messages_of_a_file_in_one_batch() -> None:
    lines = TransactionAssembly(lines=TxnEventLines(registry=Schemas())).lines
    begin = framed(4, {"type": "BEGIN", "txn_id": "7"}, 1, b"\x02\x02")
    others = framed(4, {"x": 1}), head(4, b"\x04\x02\0") + b"\x08\x01"  # of the file, and in TxnEvent
    parsed = parse(lines, [begin, others[0], begin, others[1], begin])
    assert parsed.events["type"].to_pylist() == ["BEGIN", None, "BEGIN", None, "BEGIN"]


def test_a_message_alone() -> None:
    assert json.loads(as_json(change(1), Schemas()) or b"")["payload"]["after"]["id"] == 1
    for wrong in (change(1)[:-1], head(1, b"\x02\x08") + b"\0"):
        with pytest.raises(InputError, match="does not fit its schema"):
            as_json(wrong, Schemas())
    with pytest.raises(InputError, match="Schema 5"):
        as_json(change(2, schema=5), Schemas())
