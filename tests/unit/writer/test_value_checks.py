"""The rows of a lane are written as their columns keep them, or refused with their place."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta, timezone
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from starrocks_txn_sink.errors import OptionError, UnfitValue
from starrocks_txn_sink.rows.segments import Segmenter
from starrocks_txn_sink.rows.target import TargetColumn, parse_type
from starrocks_txn_sink.writer.value_checks import ValueChecks, zone_of

pytestmark = pytest.mark.usefixtures("loop")


class Tables:
    """The columns of tables; those of `changed` are seen once the server is asked again."""

    def __init__(self, **columns: str) -> None:
        self.columns = {"orders": self._columns(columns)}
        self.changed: dict[str, str] | None = None
        self.asked = 0

    def __call__(self, table: str, again: bool) -> Sequence[TargetColumn]:
        self.asked += again
        if again and self.changed is not None:
            self.columns["orders"] = self._columns(self.changed)
        return self.columns.get(table, ())

    @staticmethod
    def _columns(columns: dict[str, str]) -> Sequence[TargetColumn]:
        return tuple(TargetColumn(name, parse_type(kind)) for name, kind in columns.items())


def batch(*rows: tuple[str, str]) -> pa.RecordBatch:
    tables, payload = zip(*rows, strict=True)
    positions = pa.array(range(len(rows)), pa.int64())
    ends = pa.array([True] * len(rows))
    names = ["source_partition", "position", "table", "transaction_end", "payload"]
    return pa.RecordBatch.from_arrays(
        [pa.array(["p"] * len(rows)), positions, pa.array(tables), ends, pa.array(payload)], names
    )


def test_rows_are_written_as_their_columns_keep_them() -> None:
    checks = ValueChecks(Tables(n="int(11)", at="datetime"))
    rows = batch(
        ("orders", ',{"n":1,"at":null}'), ("other", ',{"n":1.5}'), ("orders", ',{"n":2.0,"at":"2024-02-29T01:00:00Z"}')
    )
    new = checks(rows)
    assert new.column("payload").to_pylist() == [
        ',{"n":1,"at":null}', ',{"n":1.5}', ',{"n":2,"at":"2024-02-29 01:00:00"}',
    ]  # fmt: skip
    assert new.drop_columns(["payload"]).equals(rows.drop_columns(["payload"]))
    assert checks(rows.slice(0, 2)).column("payload").to_pylist() == rows.column("payload").to_pylist()[:2]


def test_segments_have_the_rows_as_they_are_written() -> None:
    segmenter = Segmenter(fit=ValueChecks(Tables(n="largeint(40)")))
    pieces = [getattr(segment, "piece", b"") for segment in segmenter.split(batch(("orders", ',{"n":1e2}')))]
    assert b"".join(bytes(piece) for piece in pieces) == b',{"n":100}'


def test_the_first_value_that_does_not_fit_is_named_with_its_place() -> None:
    rows = batch(("orders", ',{"n":1}'), ("orders", ',{"n":1.5}'), ("orders", ',{"n":"secret"}'))
    with pytest.raises(UnfitValue) as refused:
        ValueChecks(Tables(n="int(11)"))(rows)
    text = str(refused.value)
    assert "column n of table orders at source partition p, position 1: it has a fraction, which is cut off." in text
    assert "1 more rows" in text
    assert "secret" not in text
    assert "1.5" not in text


def test_only_an_error_that_may_quote_rows_has_the_key_of_its_row() -> None:
    key = (TargetColumn("id", parse_type("bigint(20)"), key=True), TargetColumn("n", parse_type("int(11)")))
    rows = batch(("orders", ',{"id":7,"n":1e400,"s":"secret"}'))
    with pytest.raises(UnfitValue, match=r'source partition p, position 0, key \{"id": 7\}: it ') as refused:
        ValueChecks(lambda *_: key, shows_keys=True)(rows)
    assert "secret" not in str(refused.value)
    with pytest.raises(UnfitValue, match="source partition p, position 0: it "):
        ValueChecks(lambda *_: key)(rows)


def test_a_column_that_was_widened_meanwhile_is_read_again() -> None:
    tables = Tables(n="int(11)")
    checks = ValueChecks(tables)
    tables.changed = {"n": "double"}
    rows = batch(("orders", ',{"n":1.5}'))
    assert checks(rows).equals(rows)
    assert tables.asked == 1
    assert checks(rows).equals(rows)
    assert tables.asked == 1


def test_the_time_of_a_default_is_that_of_the_batch() -> None:
    column, now = TargetColumn("at", parse_type("datetime"), defaulted=True, default="CURRENT_TIMESTAMP"), [90.0]
    checks = ValueChecks(lambda *_: (column,), wall=lambda: now[0])
    rows, texts = batch(("orders", ",{}")), []
    for now[0] in (90.0, 90.5, 91.0, 89.0):
        texts += checks(rows).column("payload").to_pylist()
    assert texts == [f',{{"at":"1970-01-01 00:01:{seconds}"}}' for seconds in (30, 30, 31, 29)]


def test_a_quarantine_hears_of_each_row_and_of_no_value() -> None:
    rows = batch(("orders", ',{"n":"x"}'), ("orders", ',{"n":true}'), ("orders", ',{"n":1.5}'))
    bad_rows = ValueChecks(Tables(n="int(11)")).bad_rows(rows)
    assert [(row.number, row.reason) for row in bad_rows] == [
        (0, "has a value that does not fit column n: it is a text that is no number"),
        (2, "has a value that does not fit column n: it has a fraction, which is cut off"),
    ]


@pytest.mark.parametrize("name", [None, "UTC", "GMT", "Etc/UTC"])
def test_utc_needs_no_zone(name: str | None) -> None:
    assert zone_of(name) is None


def test_zones_are_names_or_offsets() -> None:
    assert zone_of("Europe/Berlin") == ZoneInfo("Europe/Berlin")
    assert zone_of("-08:30") == timezone(-timedelta(hours=8, minutes=30))
    with pytest.raises(OptionError, match="timestamp_zone"):
        zone_of("Mars/Base")
