"""CSV in loads: the body's frame, the headers, and with what it cannot be combined."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink import SinkOptions
from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.options.combinations import Feature
from starrocks_txn_sink.options.load_properties import CSV_ROW
from starrocks_txn_sink.rows.body import load_body

SERVER = {"load_url": "http://fe:8030", "query_url": "mysql://fe:9030", "database": "shop"}


@given(st.lists(st.lists(st.text("ab\x01\n", max_size=4), min_size=1), min_size=1))
def test_every_row_of_a_body_ends_with_its_delimiter(chunks: list[list[str]]) -> None:
    pieces = [memoryview("".join(CSV_ROW + row for row in chunk).encode()) for chunk in chunks]
    body = load_body(pieces, "none", csv=True)
    content = b"".join(bytes(part) for part in body)
    assert len(body) == len(content)
    assert content.decode().split(CSV_ROW) == [*(row for chunk in chunks for row in chunk), ""]
    packed = load_body(pieces, "gzip", csv=True)
    assert pa.input_stream(pa.py_buffer(b"".join(packed)), compression="gzip").read() == content


@pytest.mark.parametrize(
    ("compression", "name"), [("none", "csv"), ("gzip", "gzip"), ("lz4_frame", "lz4"), ("zstd", "zstd")]
)
def test_the_format_names_the_compression(compression: str, name: str) -> None:
    tables = {"t": {"format": "csv", "compression": compression}}
    options = SinkOptions(**SERVER, tables=tables)  # type: ignore[arg-type]
    assert options.load_headers("t") == {
        "format": name,
        "column_separator": "\\x01",
        "row_delimiter": "\\x02",
        "strict_mode": "true",
        "timeout": "600",
    }
    assert options.load_headers("other")["format"] == "json"


def test_loads_are_strict_unless_the_user_says_otherwise() -> None:
    options = SinkOptions(**SERVER, tables={"lenient": {"strict_mode": "false"}})  # type: ignore[arg-type]
    assert options.load_headers("t")["strict_mode"] == "true"
    assert options.load_headers("lenient")["strict_mode"] == "false"


def test_the_sinks_own_tables_stay_json() -> None:
    options = SinkOptions(**SERVER, properties={"format": "csv"})  # type: ignore[arg-type]
    assert options.writes_csv("t")
    assert not options.writes_csv("_starrocks_txn_sink_ledger")


@pytest.mark.parametrize("more", [{"on_bad_rows": "quarantine"}])
@pytest.mark.parametrize("csv", [{"properties": {"format": "csv"}}, {"tables": {"t": {"format": "csv"}}}])
def test_what_it_cannot_be_combined_with(csv: dict[str, object], more: dict[str, object]) -> None:
    with pytest.raises(OptionError, match=r"csv.*Remove format"):
        SinkOptions(**SERVER, **csv, **more)  # type: ignore[arg-type]


def test_json_texts_are_not_made_into_csv() -> None:
    with pytest.raises(OptionError, match="rows come as JSON texts, and properties sets format to csv"):
        SinkOptions(**SERVER, properties={"format": "csv"}).check_features(Feature.JSON_TEXTS)  # type: ignore[arg-type]
