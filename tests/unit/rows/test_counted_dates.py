"""Numbers in columns of dates are refused among the first rows of each table."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.rows import counted_dates
from starrocks_txn_sink.rows.counted_dates import CountedDates
from starrocks_txn_sink.rows.value_kinds import members_of

DATES = {"orders": {"day", "at"}}


def batch(*rows: tuple[str, str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "source_partition": ["p0"] * len(rows),
            "position": pa.array(range(len(rows)), pa.int64()),
            "table": [table for table, _ in rows],
            "payload": ["," + row for _, row in rows],
        }
    )


def check() -> CountedDates:
    return CountedDates(lambda table: DATES.get(table, set()))


@pytest.mark.parametrize(("value", "column"), [("19782", "day"), ("-1", "day"), ("1709210096123456", "at")])
def test_a_number_is_refused_by_column_and_place_without_its_value(value: str, column: str) -> None:
    rows = ("items", '{"day":19782}'), ("orders", '{"day":null}'), ("orders", f'{{"n":7,"{column}":{value}}}')
    with pytest.raises(
        InputError, match=rf"column {column} of table orders.* position 2; .*schemas\.enable"
    ) as failure:
        check()(batch(*rows))
    assert value not in str(failure.value)


@pytest.mark.parametrize("row", ['{"day":"2024-02-29","n":19782}', '{"day":null}', '{"n":1}', "1,2", '{"day":true}'])
def test_other_values_are_left_to_the_server(row: str) -> None:
    check()(batch(("orders", row)))


def test_the_first_hundred_rows_of_a_table_are_looked_at() -> None:
    good, bad = ("orders", '{"day":null,"at":"2024-02-29"}'), ("orders", '{"day":19782}')
    dates = check()
    dates(batch(*[good] * 60))
    with pytest.raises(InputError):
        dates(batch(*[good] * 39, bad))
    dates = check()
    dates(batch(*[good] * 60))
    dates(batch(*[good] * 40, bad))
    dates(batch(bad))


def test_a_table_is_looked_at_until_each_column_of_dates_has_had_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[bytes] = []

    def look(text: memoryview) -> dict[str, Any] | None:
        looks.append(bytes(text))
        return members_of(text)

    monkeypatch.setattr(counted_dates, "members_of", look)
    dates = check()
    dates(batch(("orders", '{"day":"2024-02-29"}'), ("orders", '{"at":null}'), ("orders", '{"at":"2024-02-29"}')))
    dates(batch(("orders", '{"n":1}'), ("items", '{"n":1}')))
    assert len(looks) == 3
