"""Values without the converter's schema: rewritten under declared modes, refused where they may mean something else."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pytest

from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.rows.target import TargetColumn, parse_type
from starrocks_txn_sink.rows.value_kinds import members_of
from starrocks_txn_sink.sources.formats import bare_values
from starrocks_txn_sink.sources.formats.bare_values import BareValues, ConnectorModes

pytestmark = pytest.mark.usefixtures("loop")

COLUMNS = {
    "id": "int(11)", "day": "date", "at": "datetime", "price": "decimal(10,2)", "big": "bigint(20) unsigned",
    "note": "varchar(20)", "days": "array<date>", "times": "array<datetime>", "doc": "json",
}  # fmt: skip


def columns_of(table: str) -> Iterable[TargetColumn]:
    return [TargetColumn(name, parse_type(text)) for name, text in COLUMNS.items()] if table == "orders" else []


def batch(*rows: tuple[str, str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "source_partition": ["p0"] * len(rows),
            "position": pa.array(range(len(rows)), pa.int64()),
            "table": [table for table, _ in rows],
            "payload": ["," + row for _, row in rows],
        }
    )


def values(time: str | None = None, decimal: str | None = None) -> BareValues:
    return BareValues(ConnectorModes(time, decimal), columns_of)  # type: ignore[arg-type]


def written(row: str, time: str | None = None, decimal: str | None = None) -> str:
    """The row as it is loaded, between two others and in front of a table without such columns."""
    before, after = ("orders", '{"id":1}'), ("items", row)
    rows = values(time, decimal)(batch(before, ("orders", row), before, after)).column("payload").to_pylist()
    assert rows[0] == rows[2] == ',{"id":1}'
    assert rows[3] == f",{row}"
    return str(rows[1][1:])


@pytest.mark.parametrize("mode", [None, "connect"])
def test_a_row_that_is_missing_is_left_to_the_check_of_texts(mode: str | None) -> None:
    rows = batch(("orders", '{"id":1}'), ("orders", ""))
    missing = pa.array([",{}", None])
    index = rows.schema.get_field_index("payload")
    assert values(mode)(rows.set_column(index, "payload", missing)).column("payload").equals(missing)


@pytest.mark.parametrize(
    ("mode", "column", "value", "expected"),
    [
        *((mode, "day", "19782", '"2024-02-29"') for mode in ("adaptive", "adaptive_time_microseconds", "connect")),
        *((mode, "day", "-719162", '"0001-01-01"') for mode in ("microseconds", "nanoseconds")),
        ("connect", "day", "-2147472692", '"infinity"'),
        ("connect", "days", "[19782, null]", '["2024-02-29", null]'),
        ("connect", "at", "1709210096123", '"2024-02-29 12:34:56.123000"'),
        ("microseconds", "at", "1709210096123456", '"2024-02-29 12:34:56.123456"'),
        ("nanoseconds", "at", "1709210096123456000", '"2024-02-29 12:34:56.123456"'),
        ("connect", "at", "0", '"1970-01-01 00:00:00"'),
        ("connect", "at", "-719163", '"1969-12-31 23:48:00.837000"'),
        ("connect", "times", "[1709210096123]", '["2024-02-29 12:34:56.123000"]'),
    ],
)
def test_a_number_of_one_meaning_becomes_a_date(mode: str, column: str, value: str, expected: str) -> None:
    assert written(f'{{"id":7,"{column}": {value} }}', mode) == f'{{"id":7,"{column}": {expected} }}'
    assert written(f'{{"__op":1,"{column}":{value}}}', mode) == f'{{"__op":1,"{column}":{expected}}}'


def test_a_decimal_with_its_own_scale_becomes_a_number() -> None:
    assert written('{"price":{"scale":6,"value":"AQ=="}}', decimal="precise") == '{"price":"0.000001"}'
    assert written('{"big":{"value":"AQ==","scale":0}}', decimal="precise") == '{"big":"1"}'


@pytest.mark.parametrize("modes", [("connect", "precise"), (None, None)])
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ('"{\\"a\\": [1.10, \\"x\\"]}"', '{"a": [1.10, "x"]}'),
        ('"[]"', "[]"),
        ('"\\"x\\""', '"x"'),
        ('"no document"', '"no document"'),
        ('{"x":1,"y":2.5}', '{"x":1,"y":2.5}'),
        ("null", "null"),
        ("7", "7"),
        ('"' + "a" * 1000 + '"', '"' + "a" * 1000 + '"'),
        ('{"a":"' + "b" * 1000 + '"}', '{"a":"' + "b" * 1000 + '"}'),
    ],
)
def test_the_text_of_a_document_becomes_the_document(value: str, expected: str, modes: tuple[str | None, ...]) -> None:
    """PostgreSQL's recording in docs/reference/debezium-types.md: without schema a document is its text."""
    assert written(f'{{"id":7,"doc":{value},"note":{value}}}', *modes) == f'{{"id":7,"doc":{expected},"note":{value}}}'


@pytest.mark.parametrize("modes", [("connect", "precise"), ("isostring", "string"), ("adaptive", None), (None, None)])
@pytest.mark.parametrize(
    "row",
    [
        '{"day":"2024-02-29","at":"2024-02-29 12:34:56","id":19782}',
        '{"day":null,"at":null,"price":null,"days":null}',
        '{"days":[null,"2024-02-29"],"times":"[1]"}',
        '{"price":12.50,"big":7}',
        '{"price":"12.50","big":"+12"}',
        '{"price":"NaN","big":"Infinity"}',
        '{"note":"SZYC0g==","id":"x"}',
        '{"note":"' + "a" * 1000 + '","day":"' + "b" * 1000 + '"}',
        "{}",
        '{"day":true}',
        '{"day":1}{"day":1',  # torn: the check of texts says so
        "1,2",
    ],
)
def test_other_values_stay_as_they_are(row: str, modes: tuple[str | None, str | None]) -> None:
    assert written(row, *modes) == row


@pytest.mark.parametrize(
    ("time", "value", "column"),
    [
        (None, "19782", "day"),
        (None, "-1", "day"),
        (None, "1.5", "at"),
        (None, "1709210096123456", "at"),
        (None, "[null,19782]", "days"),
        ("isostring", "19782", "day"),
        ("isostring", "1709210096123", "at"),
        ("adaptive", "1709210096123456", "at"),
        ("adaptive_time_microseconds", "1709210096123", "at"),
        ("adaptive", "[1709210096123]", "times"),
        ("connect", "1709210096123", "day"),
        ("connect", "19782", "at"),
        ("nanoseconds", "-719162", "at"),
        ("connect", "1.5", "day"),
        ("connect", "1e3", "at"),
    ],
)
def test_a_number_is_refused_by_column_and_place_without_its_value(time: str | None, value: str, column: str) -> None:
    rows = ("items", '{"day":19782}'), ("orders", '{"day":null}'), ("orders", f'{{"n":7,"{column}":{value}}}')
    if "." in value or "e" in value:
        rows = (*rows[:2], ("orders", f'{{"{column}":{value}}}'))
    with pytest.raises(
        InputError, match=rf"column {column} of table orders.* position 2; .*schemas\.enable"
    ) as failure:
        values(time)(batch(*rows))
    assert value not in str(failure.value)
    assert time is None or f"time_precision_mode='{time}'" in str(failure.value)


@pytest.mark.parametrize(
    ("decimal", "column", "value"),
    [
        *((mode, "price", '"SZYC0g=="') for mode in (None, "precise", "double", "string")),
        (None, "big", '"AP//////////"'),
        (None, "id", '"AQI="'),
        ("precise", "price", '"1234"'),
        ("precise", "big", '"\\u0031234"'),
        (None, "price", '{"scale":6,"value":"AQ=="}'),
        ("precise", "price", '{"x":1.0,"y":2.0}'),
    ],
)
def test_bytes_in_a_column_of_numbers_are_refused(decimal: str | None, column: str, value: str) -> None:
    with pytest.raises(
        InputError, match=rf"column {column} of table orders.* position 0; .*schemas\.enable"
    ) as failure:
        values(decimal=decimal)(batch(("orders", f'{{"{column}":{value}}}')))
    assert value not in str(failure.value)


def test_without_a_mode_the_first_hundred_rows_of_a_table_are_looked_at() -> None:
    good, bad = ("orders", '{"day":null,"at":"2024-02-29"}'), ("orders", '{"day":19782}')
    rows = values()
    rows(batch(*[good] * 60))
    with pytest.raises(InputError):
        rows(batch(*[good] * 39, bad))
    rows = values()
    rows(batch(*[good] * 60))
    rows(batch(*[good] * 40, bad))
    rows(batch(bad))


def test_with_a_mode_each_row_is_judged() -> None:
    good, bad = ("orders", '{"day":"2024-02-29","at":null,"price":"1.5"}'), ("orders", '{"at":1709210096123}')
    with pytest.raises(InputError, match="column at of table orders"):
        values("adaptive")(batch(*[good] * 500, bad))
    with pytest.raises(InputError, match="column price of table orders"):
        values("connect", "precise")(batch(*[good] * 500, ("orders", '{"price":"1234"}')))


def test_a_table_is_looked_at_until_each_column_has_had_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[bytes] = []

    def look(text: bytes) -> object:
        looks.append(text)
        return members_of(text)

    monkeypatch.setattr(bare_values, "members_of", look)
    monkeypatch.setitem(globals(), "COLUMNS", {"day": "date", "at": "datetime", "n": "varchar(3)"})
    rows = values()
    rows(batch(("orders", '{"day":"2024-02-29"}'), ("orders", '{"at":null}'), ("orders", '{"at":"2024-02-29"}')))
    rows(batch(("orders", '{"n":1}'), ("items", '{"n":1}')))
    assert len(looks) == 3


def test_a_row_that_is_null_is_for_the_lane_to_refuse() -> None:
    rows = batch(("orders", "{}"), ("orders", "{}"))
    rows = rows.set_column(3, "payload", pa.array([None, ',{"id":1}']))
    for modes in ((), ("connect", "precise")):
        assert values(*modes)(rows).column("payload").to_pylist() == [None, ',{"id":1}']


def test_modes_travel_in_metadata() -> None:
    modes = ConnectorModes("connect", None, "hex")
    assert ConnectorModes.of_metadata(modes.metadata) == modes
    assert ConnectorModes.of_metadata(ConnectorModes().metadata) == ConnectorModes()
    assert ConnectorModes.of_metadata({}) is None


def test_an_unknown_mode_and_a_mode_of_decimals_with_a_registry_are_refused() -> None:
    with pytest.raises(OptionError, match="time_precision_mode"):
        ConnectorModes("millis")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="decimal_handling_mode"):
        ConnectorModes(None, "exact")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="registry"):
        ConnectorModes.declared(None, "precise", None, object())
    with pytest.raises(OptionError, match="binary_handling_mode"):
        ConnectorModes(None, None, "base64-url-safe")  # type: ignore[arg-type]
    assert ConnectorModes.declared("connect", None, "hex", object()) == ConnectorModes("connect", None, "hex")
    assert ConnectorModes.declared(None, None, None, object()) == ConnectorModes()
