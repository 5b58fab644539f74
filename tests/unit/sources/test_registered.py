"""Messages with the schemas of a registry: the rows are those of the same messages as JSON with their schema."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from starrocks_txn_sink import DebeziumAssembly, TransactionAssembly, TxnEventLines
from starrocks_txn_sink.errors import AuthenticationFailed, InputError, OptionError, StarRocksSinkError, TransportError
from starrocks_txn_sink.protocol.snapshots import OVER, READING
from starrocks_txn_sink.sources.formats.raw_format import RawFormat
from starrocks_txn_sink.sources.formats.registered import RegisteredMessages, as_json
from tests.support.avro_messages import Schemas, change, framed
from tests.support.message_batches import parse, rows_of

pytestmark = pytest.mark.usefixtures("loop")


def test_values_are_written_by_connect_s_schema() -> None:
    values = [change(1), None, change(-2, schema=2, note="größe"), change(3, op="d")]
    parsed = parse(DebeziumAssembly(transactions="none", registry=Schemas()).lines, values)
    assert rows_of(parsed) == [
        '{"id":1,"day":"1970-01-02","price":"0.01"}',
        '{"id":-2,"day":"1969-12-30","price":"-0.02","note":"größe"}',
        '{"id":3,"day":"1970-01-04","price":"0.03"}',
    ]
    assert parsed.events["op"].to_pylist() == ["c", "c", "d"]
    assert len(parsed.schemas["orders"]) == 2  # of which new columns get their types


def test_keys_have_schemas_of_their_own() -> None:
    lines = DebeziumAssembly(transactions="none", deleted_row="key", registry=Schemas()).lines
    parsed = parse(lines, [change(1), change(2, op="d"), None], [framed(3, {"id": number}) for number in (1, 2, 2)])
    assert rows_of(parsed) == ['{"id":1,"day":"1970-01-02","price":"0.01"}', '{"id":2}']


@pytest.mark.parametrize("deleted_row", ["before", "key"])
def test_the_names_of_keys_are_those_of_their_schema(deleted_row: Any) -> None:
    """A key in JSON has them itself; one whose schema the registry lacks, or without an object, says nothing."""
    lines = DebeziumAssembly(transactions="none", deleted_row=deleted_row, registry=Schemas()).lines
    odd = [b"5", b'{"code":1}', framed(77, {"id": 1})] if deleted_row == "before" else []
    keys = [framed(3, {"id": 1}), framed(3, {"id": 2}), *odd, None]
    parsed = parse(lines, [change(number) for number in range(len(keys))], keys)
    places = {names for _, _, _, names in parsed.keys}
    assert places == {("id",), ()} | ({("code",)} if odd else set())
    assert {place[:3] for place in parsed.keys} == {("shop", "public.orders", "orders")}


def test_a_schema_is_asked_for_once() -> None:
    schemas = Schemas()
    lines = DebeziumAssembly(transactions="none", registry=schemas).lines
    for _ in range(3):
        parse(lines, [change(1), change(2)])
    assert schemas.asked == [1]


def in_small_pieces(**terms: Any) -> RawFormat:
    lines = DebeziumAssembly(transactions="none", registry=Schemas(), **terms).lines
    assert isinstance(lines, RegisteredMessages)
    return replace(lines, piece_bytes=20_000)


def test_a_snapshot_over_several_pieces_has_its_marks() -> None:
    marks = ["first", *["true"] * 300, "last"]
    values = [change(number, op="r", snapshot=mark) for number, mark in enumerate(marks)]
    parsed = parse(in_small_pieces(), values)
    assert parsed.marks == {"shop:": OVER, "shop:public.orders": OVER}
    assert parse(in_small_pieces(), values[:-1]).marks == {"shop:": READING, "shop:public.orders": READING}


def test_a_long_batch_is_read_in_pieces() -> None:
    lines = in_small_pieces(on_malformed="drop")
    values = [change(number, schema=1 + number % 2) for number in range(300)]
    values[7] = values[211] = b"{}"
    parsed = parse(lines, values)
    assert parsed.malformed == 2
    assert [json.loads(row)["id"] for row in rows_of(parsed)] == [
        number for number in range(300) if number not in (7, 211)
    ]
    assert parsed.events["position"].to_pylist() == [number for number in range(300) if number not in (7, 211)]
    assert len(parsed.schemas["orders"]) == 2


@pytest.mark.parametrize("wrong", [b"", b'{"op": "c"}', change(1)[:-1], change(1) + b"x", b"\0\0\0\0\1"])
def test_a_message_without_the_frame_or_of_another_schema(wrong: bytes) -> None:
    values = [change(1), wrong, change(2)]
    with pytest.raises(InputError, match=r"topic=shop.public.orders partition=0 offset=1") as error:
        parse(DebeziumAssembly(transactions="none", registry=Schemas()).lines, values)
    framed = wrong.startswith(b"\0\0\0\0\1")
    assert ("does not fit its schema (1 of the registry)" in error.value.message) is framed
    assert ("does not begin with the number of a schema" in error.value.message) is not framed
    parsed = parse(DebeziumAssembly(transactions="none", registry=Schemas(), on_malformed="drop").lines, values)
    assert (parsed.malformed, len(rows_of(parsed))) == (1, 2)


def test_a_column_of_strings_is_refused() -> None:
    lines = TransactionAssembly(lines=TxnEventLines(registry=Schemas())).lines
    assert lines is not None
    columns = {"source_partition": ["0"], "position": [0], "value": ["text"]}
    with pytest.raises(InputError, match="is a string"):
        lines.parse(pa.RecordBatch.from_pydict({name: pa.array(values) for name, values in columns.items()}))


def test_an_unknown_schema_is_named_with_the_place() -> None:
    lines = DebeziumAssembly(transactions="none", registry=Schemas()).lines
    with pytest.raises(InputError, match=r"offset=1: The schema registry does not know schema 9") as error:
        parse(lines, [change(1), framed(9, {"id": 1})])
    assert error.value.code == "unknown_schema"
    assert 'on_malformed="drop"' in error.value.advice


def test_messages_whose_schema_the_registry_does_not_have_are_dropped() -> None:
    """A number is waited for once, and again by no batch; what comes behind the wait was there during it."""
    registry = Schemas()
    lines = DebeziumAssembly(transactions="none", deleted_row="key", registry=registry, on_malformed="drop").lines
    values = [change(1), framed(9, {"id": 1}), change(2), framed(10, {"id": 1}), change(3), framed(9, {"id": 1})]
    keys = [framed(3, {"id": number}) for number in range(4)] + [framed(11, {"id": 4}), framed(3, {"id": 5})]
    for _ in range(2):
        parsed = parse(lines, values, keys)
        assert (parsed.malformed, [json.loads(row)["id"] for row in rows_of(parsed)]) == (4, [1, 2])
        assert parsed.events["position"].to_pylist() == [0, 2]
    waited = [number for number, patient in registry.questions if patient and number > 4]
    assert waited == [9]


def test_a_number_that_is_known_later_is_read() -> None:
    """A message had it by chance; the schema that gets it afterwards is no worse for that."""
    registry = LaterSchemas()
    lines = DebeziumAssembly(transactions="none", registry=registry, on_malformed="drop").lines
    assert parse(lines, [later(1)]).malformed == 1
    registry.there = True
    assert len(rows_of(parse(lines, [later(1), later(2)]))) == 2


@pytest.mark.parametrize("error", [TransportError("It does not answer."), AuthenticationFailed("It refuses.")])
def test_a_registry_that_gives_nothing_at_all_drops_nothing(error: StarRocksSinkError) -> None:
    registry = LaterSchemas(error)
    lines = DebeziumAssembly(transactions="none", registry=registry, on_malformed="drop").lines
    with pytest.raises(type(error)):
        parse(lines, [change(1), later(2)])


class LaterSchemas(Schemas):
    """Number 12 is schema 1 once it is `there`; until then the registry answers with an error."""

    def __init__(self, error: StarRocksSinkError | None = None) -> None:
        super().__init__()
        self.there, self.error = False, error

    def schema(
        self, number: int, *, apicurio: bool = False, patient: bool = True
    ) -> tuple[str, str, tuple[tuple[str, str], ...]]:
        if number == 12 and self.error is not None:
            raise self.error
        return super().schema(1 if number == 12 and self.there else number, apicurio=apicurio, patient=patient)


def later(number: int) -> bytes:
    return b"\0\0\0\0\x0c" + change(number)[5:]


def test_an_unknown_schema_of_a_key_is_named_with_the_key_s_place() -> None:
    lines = DebeziumAssembly(transactions="none", deleted_row="key", registry=Schemas()).lines
    with pytest.raises(InputError, match=r"offset=1: The schema registry does not know schema 9"):
        parse(lines, [change(1), change(2)], [framed(3, {"id": 1}), b"\0\0\0\0\x09\x02"])


def test_keys_of_another_converter_say_nothing_and_ask_little() -> None:
    """Eight bytes of a number may begin as the number of a schema does: of one that is unknown, or of other rows."""
    registry = Schemas()
    lines = DebeziumAssembly(transactions="none", registry=registry).lines
    for start in (1, 40):
        numbers = [(number << 24) + 3 for number in range(start, start + 30)]
        keys = [number.to_bytes(8, "big") for number in numbers]
        for _ in range(2):
            parsed = parse(lines, [change(number) for number in range(len(keys))], keys)
            assert not parsed.keys
    assert len(registry.asked) <= 4 + 2 * 3
    assert not any(patient for number, patient in registry.questions if number > 4)


def test_txn_events() -> None:
    lines = TransactionAssembly(lines=TxnEventLines(registry=Schemas())).lines
    events = [
        {"type": "BEGIN", "txn_id": "7"},
        {"type": "DATA", "txn_id": "7", "table": "orders", "row": '{"id":1}'},
        {"type": "END", "txn_id": "7"},
    ]
    parsed = parse(lines, [framed(4, dict.fromkeys(("type", "txn_id", "table", "row")) | event) for event in events])
    assert parsed.events["type"].to_pylist() == ["BEGIN", "DATA", "END"]
    assert parsed.events["row"].to_pylist() == [None, '{"id":1}', None]
    with pytest.raises(InputError, match="position=1"):
        parse(lines, [framed(4, dict.fromkeys(("type", "txn_id", "table", "row"))), None])


class JsonSchemas(Schemas):
    """Number 20 is JSON Schema, number 21 Connect's own, both of the rows that schema 1 has as Avro."""

    def schema(
        self, number: int, *, apicurio: bool = False, patient: bool = True
    ) -> tuple[str, str, tuple[tuple[str, str], ...]]:
        if number not in (20, 21):
            return super().schema(number, patient=patient)
        self.asked.append(number)
        assert apicurio == (number == 21)
        day, price = "io.debezium.time.Date", "org.apache.kafka.connect.data.Decimal"
        if number == 21:
            columns = [
                {"type": "int64", "field": "id"},
                {"type": "int32", "field": "day", "name": day},
                {"type": "bytes", "field": "price", "name": price, "parameters": {"scale": "2"}},
            ]
            row = {"type": "struct", "optional": True, "fields": columns}
            rows = [{**row, "field": name} for name in ("before", "after")]
            return "KCONNECT", json.dumps({"type": "struct", "fields": [*rows, {"type": "string", "field": "op"}]}), ()
        members = {
            "id": {"type": "integer", "connect.type": "int64"},
            "day": {"type": "integer", "connect.type": "int32", "title": day},
            "price": {"type": "number", "connect.type": "bytes", "title": price, "connect.parameters": {"scale": "2"}},
        }
        any_row = {"oneOf": [{"type": "null"}, {"type": "object", "properties": members}]}
        envelope = {"before": any_row, "after": any_row, "op": {"type": "string"}}
        return "JSON", json.dumps({"type": "object", "properties": envelope}), ()


def json_change(number: int, price: object = "AQ==") -> bytes:
    source = {"name": "shop", "db": "shop", "schema": "public", "table": "orders", "lsn": number}
    row = {"id": number, "day": number, "price": price}
    return json.dumps({"before": None, "after": row, "source": source, "op": "c"}, separators=(",", ":")).encode()


def by_member(content: bytes) -> bytes:
    return b'{"schemaId":21,"payload":' + content + b"}"


HEAD = b"\0\0\0\0\x14"  # of schema 20


def test_messages_of_json_and_of_avro_in_one_batch() -> None:
    values = [change(1), HEAD + json_change(2), None, by_member(json_change(3)), HEAD + json_change(4, 1.50), change(5)]
    schemas = JsonSchemas()
    parsed = parse(DebeziumAssembly(transactions="none", registry=schemas).lines, values)
    assert rows_of(parsed) == [
        '{"id":1,"day":"1970-01-02","price":"0.01"}',
        '{"id":2,"day":"1970-01-03","price":"0.01"}',
        '{"id":3,"day":"1970-01-04","price":"0.01"}',
        '{"id":4,"day":"1970-01-05","price":1.5}',
        '{"id":5,"day":"1970-01-06","price":"0.05"}',
    ]
    assert sorted(schemas.asked) == [1, 20, 21]


@pytest.mark.parametrize(
    "wrong",
    [
        HEAD,
        HEAD + b"1",
        HEAD + json_change(2)[:-1],
        HEAD + json_change(2) + b',"more":{}',
        HEAD + b'{"op":"c","after":null},"payload":' + json_change(2),
        by_member(json_change(2))[:-1],
        by_member(json_change(2)) + b"}",
        by_member(json_change(2) + b',"more":{}'),
        HEAD + json_change(2).replace(b"shop", b"\xff"),
    ],
)
def test_json_that_is_not_one_object_alone_is_malformed(wrong: bytes) -> None:
    """Around a message stand schema and payload: it must not close them."""
    values = [HEAD + json_change(1), wrong, by_member(json_change(3))]
    with pytest.raises(InputError, match="offset=1"):
        parse(DebeziumAssembly(transactions="none", registry=JsonSchemas()).lines, values)
    parsed = parse(DebeziumAssembly(transactions="none", registry=JsonSchemas(), on_malformed="drop").lines, values)
    assert (parsed.malformed, [json.loads(row)["id"] for row in rows_of(parsed)]) == (1, [1, 3])


def test_txn_events_of_json_with_a_schema() -> None:
    lines = TransactionAssembly(lines=TxnEventLines(registry=JsonSchemas())).lines
    events = [{"type": "BEGIN", "txn_id": "7"}, {"type": "DATA", "txn_id": "7", "table": "orders", "row": {"id": 1}}]
    parsed = parse(lines, [HEAD + json.dumps(event, separators=(",", ":")).encode() for event in events])
    assert parsed.events["row"].to_pylist() == [None, '{"id":1}']


def test_a_message_of_json_alone() -> None:
    assert json.loads(as_json(HEAD + json_change(1), JsonSchemas()) or b"")["payload"]["after"]["id"] == 1
    with pytest.raises(InputError, match="does not fit its schema"):
        as_json(HEAD + b"{", JsonSchemas())


@pytest.mark.parametrize("kind", [DebeziumAssembly, TxnEventLines])
def test_an_address_is_no_registry_and_is_not_shown(kind: Any) -> None:
    with pytest.raises(OptionError, match=r"registry is of the type str\..*SchemaRegistry\(url=") as failure:
        kind(registry="http://user:secret@registry:8081")
    assert "secret" not in str(failure.value)
