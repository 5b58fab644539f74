"""Rows judged by the columns of their table."""

from __future__ import annotations

import json
import re
import uuid
from zoneinfo import ZoneInfo

import pytest

from starrocks_txn_sink.options.decoding import Encoding
from starrocks_txn_sink.rows.target import TargetColumn, parse_type
from starrocks_txn_sink.rows.values.judgement import RowRules, UnfitColumn

COLUMNS = (
    TargetColumn("id", parse_type("int(11)"), nullable=False, key=True),
    TargetColumn("n", parse_type("int(11)")),
    TargetColumn("at", parse_type("datetime")),
    TargetColumn("kind", parse_type("varchar(8)"), nullable=False, defaulted=True, default="new"),
    TargetColumn("size", parse_type("smallint(6)"), defaulted=True, default="7"),
    TargetColumn("twice", parse_type("bigint(20)"), generated=True),
)
RULES = RowRules.of(COLUMNS)
WHOLE = ',{"id":1,"n":2,"at":"2024-02-29 12:34:56","kind":"a","size":3}'


def fault(row: str, rules: RowRules = RULES) -> tuple[str, str]:
    with pytest.raises(UnfitColumn) as refused:
        rules.fit(row)
    return refused.value.column, refused.value.reason


def test_a_row_that_fits_is_the_very_text() -> None:
    assert RULES.fit(WHOLE) is WHOLE


def test_values_are_written_as_their_columns_keep_them() -> None:
    row = ', {"id" : 1e2, "n":true , "at":"2024-02-29T12:34:56+01:00","kind":"a","size":null, "other":1.5}'
    assert RULES.fit(row) == (', {"id" : 100, "n":1 , "at":"2024-02-29 11:34:56","kind":"a","size":null, "other":1.5}')


def test_instants_are_written_in_the_zone_of_the_job() -> None:
    rules = RowRules.of(COLUMNS, ZoneInfo("Asia/Shanghai"))
    row = WHOLE.replace("2024-02-29 12:34:56", "2024-02-29T20:00:00.5Z")
    assert '"2024-03-01 04:00:00.500000"' in rules.fit(row)
    assert rules.fit(WHOLE) is WHOLE


@pytest.mark.parametrize(
    ("old", "new", "column", "reason"),
    [
        ('"n":2', '"n":2.5', "n", "has a fraction, which is cut off"),
        ('"id":1', '"id":null', "id", "is NULL, and the column is NOT NULL"),
        ('"kind":"a"', '"kind":null', "kind", "is NULL, and the column is NOT NULL"),
        ('"n":2', '"n":2,"n":3', "n", "comes twice in a row, and only the first one is kept"),
        ('"kind":"a"', '"kind":"too long a text"', "kind", "has more than the 8 bytes of the column"),
    ],
)
def test_the_first_column_that_would_not_keep_its_value_is_named(old: str, new: str, column: str, reason: str) -> None:
    assert fault(WHOLE.replace(old, new)) == (column, reason)


def test_a_column_with_a_default_gets_it_where_a_row_leaves_it_out() -> None:
    assert RULES.fit(',{"id":1,"size":4}') == ',{"kind":"new","id":1,"size":4}'
    assert RULES.fit(',{"id":1}') == ',{"kind":"new","size":"7","id":1}'
    unchanged = ',{"id":1,"kind":"b","__starrocks_txn_sink_unchanged":["size"]}'
    assert RULES.fit(unchanged) is unchanged


def filled(kind: str, default: str, zone: str | None = None) -> str:
    """The value that a row without the column gets, at 1,709,210,096.789012 s (2024-02-29 12:34:56.789012 UTC)."""
    column = TargetColumn("v", parse_type(kind), defaulted=True, default=default)
    rules = RowRules.of((column,), ZoneInfo(zone) if zone else None, moment=1709210096.789012)
    row = rules.fit(',{"id":1}')
    assert row.startswith(',{"v":')
    assert row.endswith(',"id":1}')
    return row.removeprefix(',{"v":').removesuffix(',"id":1}')


@pytest.mark.parametrize(
    ("default", "text"),
    [
        ("CURRENT_TIMESTAMP", "2024-02-29 12:34:56"),
        ("now()", "2024-02-29 12:34:56"),
        ("current_timestamp(3)", "2024-02-29 12:34:56.789"),
        ("CURRENT_TIMESTAMP( 6 )", "2024-02-29 12:34:56.789012"),
    ],
)
def test_a_default_that_is_the_time_is_written(default: str, text: str) -> None:
    assert filled("datetime", default) == f'"{text}"'
    assert filled("datetime", default, "Asia/Tokyo") == f'"{text}"'.replace("12:34", "21:34")


def test_a_default_that_is_a_uuid_is_another_one_in_each_row() -> None:
    texts = {filled("varchar(36)", "uuid()") for _ in range(3)}
    assert len({uuid.UUID(text[1:-1]) for text in texts}) == 3
    numbers = {int(filled("largeint(40)", "uuid_numeric()")) for _ in range(3)}
    assert len(numbers) == 3
    assert max(numbers) < 1 << 127


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ("int(11)", "no number"), ("int(11)", "now()"), ("datetime", "uuid()"), ("datetime", "current_timestamp(9)"),
        ("varchar(35)", "uuid()"), ("bigint(20)", "uuid_numeric()"), ("bitmap", "7"),
    ],
)  # fmt: skip
def test_a_default_that_its_column_does_not_take_is_not_made_up(kind: str, default: str) -> None:
    column = TargetColumn("v", parse_type(kind), defaulted=True, default=default)
    rules = RowRules.of((column,))
    assert fault(',{"id":1}', rules)[1].startswith("is missing in a row, and becomes NULL")


def test_a_delete_must_have_its_key() -> None:
    kinds = {"a": "7", "b": "uuid()", "c": "CURRENT_TIMESTAMP", "d": None}
    types = {"a": "int(11)", "b": "varchar(40)", "c": "datetime", "d": "bigint(20)"}
    for missing, default in kinds.items():
        rules = RowRules.of(
            TargetColumn(
                name, parse_type(kind), nullable=False, key=True, defaulted=kinds[name] is not None, default=kinds[name]
            )
            for name, kind in types.items()
        )
        values = {"a": "1", "b": '"x"', "c": '"2024-02-29 00:00:00"', "d": "4"}
        row = ',{"__op":1' + "".join(f',"{name}":{value}' for name, value in values.items() if name != missing) + "}"
        if default == "7":
            assert rules.fit(row) == ',{"__op":1,"a":"7","b":"x","c":"2024-02-29 00:00:00","d":4}'
        else:
            assert fault(row, rules)[0] == missing
            assert re.match("is missing in a delete, and is part of the key: .*REPLICA IDENTITY", fault(row, rules)[1])
            null = row.replace('"__op":1', f'"__op":1,"{missing}":null')
            if missing != "d":  # a BIGINT may be AUTO_INCREMENT
                assert re.match("is NULL in a delete, and is part of the key: .*REPLICA", fault(null, rules)[1])
        row = row.replace('"__op":1,', "")
        if missing != "d":
            assert f'"{missing}":' in rules.fit(row)


def test_a_generated_column_is_neither_missed_nor_judged() -> None:
    assert RULES.fit(WHOLE.replace('"n":2', '"n":2,"twice":"x"')) == WHOLE.replace('"n":2', '"n":2,"twice":"x"')


def test_a_row_without_a_column_that_needs_a_value_is_refused() -> None:
    needed = TargetColumn("v", parse_type("varchar(9)"), nullable=False)
    assert fault(',{"id":1}', RowRules.of((needed,)))[1].startswith("is missing in a row, and the column is NOT NULL")


def test_a_bigint_that_may_count_rows_by_itself_is_not_missed() -> None:
    """information_schema does not show AUTO_INCREMENT."""
    rules = RowRules.of([TargetColumn("v", parse_type("bigint(20)"), nullable=False)])
    for row in (',{"a":1}', ',{"v":null}'):
        assert rules.fit(row) is row


def test_only_the_key_of_a_delete_counts() -> None:
    row = ',{"__op":1,"id":1,"n":2.5,"kind":"too long a text"}'
    assert RULES.fit(row) == ',{"__op":1,"id":1,"n":null,"kind":""}'
    assert fault(',{"__op":1,"id":1.5}')[0] == "id"
    short = ',{"__op":1,"id":1}'
    assert RULES.fit(short) is short


@pytest.mark.parametrize("text", [',{"n":1.5', ",[1]", ',{"n":1.5} {}', ","])
def test_a_text_that_is_no_object_is_another_checks_business(text: str) -> None:
    assert RULES.fit(text) is text


def test_a_text_that_stands_for_bytes_is_refused_where_its_letters_would_be_kept() -> None:
    column = TargetColumn("photo", parse_type("varbinary(40)"))
    for row in (',{"photo":null}', ',{"__op":1,"photo":"AP/+"}'):
        assert RowRules.of((column,), encodes_bytes=True).fit(row) in (row, ',{"__op":1,"photo":null}')
    assert fault(',{"photo":"AP/+"}', RowRules.of((column,), encodes_bytes=True))[1].startswith("is a text that stands")
    assert RowRules.of((column,)).fit(',{"photo":"AP/+"}') == ',{"photo":"AP/+"}'


@pytest.mark.parametrize(
    ("encoding", "text", "fault_text"),
    [
        (Encoding.BASE64, "AP/+", None),
        (Encoding.BASE64, "", None),
        (Encoding.BASE64, "AP/", "is no text of bytes (base64)"),
        (Encoding.BASE64, "AP-_", "is no text of bytes (base64)"),
        (Encoding.BASE64, "AB==", "is no text of bytes (base64)"),  # the bits behind the byte are not 0
        (Encoding.BASE64, "AP/+AP/+", "has more than the 4 bytes of the column"),
        (Encoding.BASE64, "A" * 1_048_580, "is no text of bytes (base64), or one of more than 1048576 letters"),
        (Encoding.HEX, "00fFFE", None),
        (Encoding.HEX, "00f", "is no text of bytes (hexadecimal)"),
        (Encoding.HEX, "\\x00ff", "is no text of bytes (hexadecimal)"),
        (Encoding.HEX, "0011223344", "has more than the 4 bytes of the column"),
    ],
)
def test_a_text_that_the_server_decodes_stands_for_bytes_of_the_column(
    encoding: Encoding, text: str, fault_text: str | None
) -> None:
    rules = RowRules.of((TargetColumn("photo", parse_type("varbinary(4)")),), decoded={"photo": encoding})
    row = f',{{"photo":{json.dumps(text)}}}'
    if fault_text is None:
        assert rules.fit(row) is row
    else:
        column, reason = fault(row, rules)
        assert column == "photo"
        assert reason.startswith(fault_text)
    assert fault(',{"photo":1}', rules)[1].startswith("is no text of bytes")
