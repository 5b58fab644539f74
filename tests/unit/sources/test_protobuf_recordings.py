"""What Debezium's connector sent through Confluent's ProtobufConverter: the rows are those of JSON with its schema.

`recordings/debezium_protobuf.json` has the messages, the registry's texts and the rows of the same changes as JSON; the
member `made by` says of what.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc_tools")

from starrocks_txn_sink import DebeziumAssembly
from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.rows.json_members import spans_of
from starrocks_txn_sink.sources.formats.raw_format import ParsedMessages
from tests.support.message_batches import parse

pytestmark = pytest.mark.usefixtures("loop")

RECORDING: dict[str, Any] = json.loads(
    (Path(__file__).parent / "recordings" / "debezium_protobuf.json").read_text(encoding="utf-8")
)
CONNECTORS: dict[str, Any] = RECORDING["connectors"]
OTHERS = {"date", "time", "timestamp", "timestamp(3)", "time(0)", "time(3)", "timestamp[]"}
"""Types whose names the converter loses unless time.precision.mode is connect."""
WITHOUT_NAME = {"json", "jsonb", "jsonb[]", "bit(10)", "bit varying(10)", "timestamptz"}
CHANGED = {("date", "'infinity'"), ("date", "'-infinity'"), ("date", "'0044-03-15 BC'"), ("time(3)", "'24:00:00'")}
"""Values that the converter itself changes."""


class Recorded:
    """The registry of the recording."""

    def schema(self, number: int, **_: bool) -> tuple[str, str, tuple[tuple[str, str], ...]]:
        return "PROTOBUF", RECORDING["schemas"][str(number)], ()


def decoded(messages: Sequence[str | None]) -> list[bytes | None]:
    return [None if message is None else base64.b64decode(message) for message in messages]


def parsed(topic: str, values: list[str | None], keys: Sequence[str | None] = (), **terms: Any) -> ParsedMessages:
    lines = DebeziumAssembly(registry=Recorded(), **terms).lines
    return parse(lines, decoded(values), decoded(keys), topic=topic, source_partition="shop-0")


def members(row: str) -> dict[str, Any]:
    return {name: json.loads(row[start:end]) for name, _, start, end in spans_of(row)}


def rows_of(connector: str, table: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The members of each row, and those that JSON with its schema has, under the names of the former."""
    recorded = CONNECTORS[connector]["tables"][table]
    events = parsed(f"shop.{table}", recorded["values"], transactions="none").events
    assert events["op"].to_pylist() == recorded["ops"]
    pairs = zip(map(members, events["row"].to_pylist()), map(members, recorded["rows"]), strict=True)
    return [(row, dict(zip(row, expected.values(), strict=True))) for row, expected in pairs]


@pytest.mark.parametrize("connector", ["optional_connect", "wrapper_connect", "optional_adaptive"])
def test_the_values_of_all_types(connector: str) -> None:
    ((row, expected),) = rows_of(connector, "public.types")
    cases = {f"c{number}": case for number, case in enumerate(RECORDING["cases"])}
    different = {name for name in row if row[name] != expected[name]}
    lost = WITHOUT_NAME | (OTHERS if connector.endswith("adaptive") else set())
    assert {tuple(cases[name]) for name in different if cases[name][0] not in lost} <= CHANGED
    assert all(name in different for name, (kind, _) in cases.items() if kind in lost)


@pytest.mark.parametrize("connector", ["optional_connect", "wrapper_connect"])
def test_null_is_null_and_zero_is_zero(connector: str) -> None:
    """But for an array, of which the converter writes NULL as an empty one."""
    for row, expected in rows_of(connector, "public.defaults"):
        expected["list"] = expected["list"] or []
        assert row == expected


def test_numbers_that_the_schema_does_not_explain_stay_numbers() -> None:
    row, expected = rows_of("optional_adaptive", "public.defaults")[2]
    assert (expected["day"], expected["at"]) == ("1969-12-31", "1969-12-31 23:59:59.999000")
    assert (row["day"], row["at"]) == (-1, -1)


def test_names_maps_and_arrays() -> None:
    """Connect's maps are messages of their own, and names are replaced. Early days are Julian in between."""
    for row, expected in rows_of("scrub-connect", "public.odd-names"):
        assert row == {
            name: ({} if name == "h" else []) if value is None and name in ("h", "dec", "days") else value
            for name, value in expected.items()
        }
    assert [*row][1:] == ["gr_EF_BF_83_EF_BE_B6_EF_BF_83_EF_BE_9Fe_x", "Value", "x_low", "h", "dec", "days"]
    assert row["days"] == ["0001-01-01", "1582-10-15", "1500-02-28"]


def test_a_converter_that_writes_null_as_zero_is_refused() -> None:
    with pytest.raises(InputError, match=r"offset=0: Schema \d+ .* writes NULL as zero"):
        rows_of("plain_connect", "public.defaults")


@pytest.mark.parametrize("connector", ["optional_connect", "wrapper_connect"])
@pytest.mark.parametrize("deleted_row", ["before", "key"])
def test_keys_and_deletes(connector: str, deleted_row: str) -> None:
    table = CONNECTORS[connector]["tables"]["public.defaults"]
    messages = parsed(
        "shop.public.defaults", table["values"], table["keys"], transactions="none", deleted_row=deleted_row
    )
    assert {names for _, _, _, names in messages.keys} == {("id",)}
    deleted = messages.events["op"].to_pylist().index("d")
    assert members(messages.events["row"].to_pylist()[deleted])["id"] == 2


@pytest.mark.parametrize("connector", ["optional_connect", "wrapper_connect", "scrub-connect"])
def test_transactions_with_their_markers(connector: str) -> None:
    events = parsed("shop.transaction", CONNECTORS[connector]["markers"]).events.to_pylist()
    ends = [event for event in events if event["status"] == "END"]
    assert [event["status"] for event in events] == ["BEGIN", "END"] * (len(events) // 2)
    for end in ends:
        assert end["event_count"] == sum(part["event_count"] for part in end["data_collections"])
    if connector != "scrub-connect":
        assert [end["event_count"] for end in ends][:4] == [4, 1, 1, 1]
