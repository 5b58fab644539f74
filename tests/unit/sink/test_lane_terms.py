"""What a frame of lanes carries to the data source: options and their limits, and the numbers of its rows."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from pyspark.sql import types as T

from starrocks_emulator.server import Emulator
from starrocks_txn_sink import SinkOptions
from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.rows.columns import PAYLOAD, ROW_NUMBER, ROW_NUMBER_BITS
from starrocks_txn_sink.rows.segments import check_row_numbers
from starrocks_txn_sink.sink.data_source import LaneWrite, StarRocksDataSource
from starrocks_txn_sink.sink.lane_layout import LaneTerms
from starrocks_txn_sink.sink.plain_frames import LaneMessage
from starrocks_txn_sink.sink.typed.terms import TableTerms
from starrocks_txn_sink.telemetry import LogSettings
from starrocks_txn_sink.writer.messages import LaneReport
from starrocks_txn_sink.writer.task import LaneTask

SERVER: dict[str, Any] = {"load_url": "http://fe:8030", "query_url": "mysql://fe:9030", "database": "shop"}


def travelled(options: SinkOptions, logging: LogSettings | None = None) -> LaneTerms:
    """The terms as the data source finds them in the frame's schema."""
    terms = LaneTerms.of(TableTerms(options, {}), marked=True, epoch="e1", logging=logging)
    return LaneTerms.within(T.StructType().add(PAYLOAD, "string", metadata=terms.metadata))


@pytest.mark.parametrize(
    "given_options",
    [
        {},
        {"lanes": 4, "job": "orders", "on_bad_rows": "quarantine", "compression": "zstd", "timestamp_zone": "UTC"},
        {"tables": {"Orders": {"columns": "`a`,`b`"}}, "properties": {"strict_mode": "true"}, "redirect_hosts": ["be"]},
        {"password_environment": "SECRET", "batch_deadline": 17, "redirect_map": {"a:1": "b:2"}},
    ],
)  # fmt: skip
def test_options_arrive_as_they_were(given_options: dict[str, Any]) -> None:
    options = SinkOptions(**{**SERVER, "lanes": 1, **given_options})  # the frame has so many
    assert (
        travelled(options).sink_options({"path": "", "checkpointLocation": "/x", "queryName": "n", "batch_id": "3"})
        == options
    )


def test_a_frame_with_positions_needs_a_job_of_its_own() -> None:
    terms = LaneTerms.of(TableTerms(SinkOptions(**SERVER), {}), marked=True, epoch="e1", logging=None)
    schema = T.StructType().add(PAYLOAD, "string", metadata=terms.metadata)
    with pytest.raises(OptionError, match="`job` is not set"):
        StarRocksDataSource({}).writer(schema, overwrite=False)


def test_a_password_stays_behind_and_is_asked_for() -> None:
    terms = travelled(SinkOptions(**SERVER, password="hush-hush"))
    assert "hush" not in str(terms.metadata)
    with pytest.raises(OptionError, match=r"does not travel with the frame.*\.option"):
        terms.sink_options({})
    assert terms.sink_options({"password": "other"}).read_password() == "other"


def test_what_the_rows_were_not_made_with_may_be_given_to_the_writer() -> None:
    terms = travelled(SinkOptions(**SERVER), LogSettings("INFO", "json"))
    assert terms.logging == LogSettings("INFO", "json")
    options = terms.sink_options({"job": "j", "commitInterval": "5 s", "lanes": "1"})
    assert (options.job, options.commit_interval) == ("j", 5.0)
    with pytest.raises(OptionError, match="nonsense"):
        terms.sink_options({"nonsense": "1"})


@pytest.mark.parametrize(
    ("name", "value"),
    [("database", "other"), ("lanes", "2"), ("delivery", "at-least-once"), ("on_bad_rows", "quarantine")],
)
def test_what_they_were_made_with_may_not_change(name: str, value: str) -> None:
    with pytest.raises(OptionError, match=f"{name} cannot be changed after lane_partitioned"):
        travelled(SinkOptions(**SERVER)).sink_options({name: value})


@pytest.mark.parametrize(("name", "value"), [("shuffle", "false"), ("metrics_port", "0"), ("schema_changes", "apply")])
def test_what_it_lacks_is_refused(name: str, value: str) -> None:
    with pytest.raises(OptionError, match=f"{name} .*the data source: .*Leave {name} out, or use StarRocksSink"):
        travelled(SinkOptions(**SERVER)).sink_options({name: value})


@pytest.mark.parametrize("schema", [T.StructType(), T.StructType().add(PAYLOAD, "string")])
def test_other_frames_have_no_terms(schema: T.StructType) -> None:
    with pytest.raises(InputError, match="was not made by lane_partitioned"):
        LaneTerms.within(schema)


# --- the numbers of rows ---


def batches(places: list[int], sizes: list[int]) -> list[pa.RecordBatch]:
    bounds = np.cumsum([0, *sizes])
    return [
        pa.RecordBatch.from_pydict({ROW_NUMBER: pa.array(part, pa.int64()), "x": pa.array(part, pa.int64())})
        for part in (places[low:high] for low, high in itertools.pairwise(bounds))
    ]


@given(st.integers(0, 40), st.lists(st.integers(0, 5), max_size=6))
def test_rows_in_their_places_pass_without_the_column(lane: int, sizes: list[int]) -> None:
    places = [(lane << ROW_NUMBER_BITS) + row for row in range(sum(sizes))]
    out = list(check_row_numbers(batches(places, sizes), lane))
    assert [row for batch in out for row in batch.column("x").to_pylist()] == places
    assert all(batch.schema.names == ["x"] for batch in out)


@given(st.data())
def test_any_change_of_the_rows_is_noticed(data: st.DataObject) -> None:
    count, lane = data.draw(st.integers(1, 8)), data.draw(st.integers(0, 3))
    whole = [(other << ROW_NUMBER_BITS) + row for other in range(4) for row in range(count)]
    kept = data.draw(st.lists(st.sampled_from(whole), min_size=1, max_size=2 * count))
    expected = [(lane << ROW_NUMBER_BITS) + row for row in range(len(kept))]
    if kept == expected:  # a beginning of the lane: its end shows that it was cut off
        return
    with pytest.raises(InputError, match=f"rows of lane {lane} are not the ones"):
        list(check_row_numbers(batches(kept, [len(kept)]), lane))


@pytest.mark.stand_in("CREATE TABLE shop.t (id BIGINT, name INT) DUPLICATE KEY(id) DISTRIBUTED BY HASH(id)")
def test_the_end_of_a_write_says_what_the_lanes_found(server: Emulator, caplog: pytest.LogCaptureFixture) -> None:
    options = SinkOptions(load_url=server.load_url, query_url=server.query_url, database="shop", lanes=2)
    lanes = LaneWrite(LaneTask(options, "job", "e1", "c", 0))
    reports = [LaneReport("job", lane, 0, listed=lane == 1, members={"t": ("id", "nmae")}) for lane in (0, 1)]
    lanes.finish([LaneMessage(lane, (report,)) for lane, report in enumerate(reports)])
    lines = [(record.levelname, record.getMessage().split(" advice=")[0]) for record in caplog.records]
    assert [line for line in lines if "job=job" in line[1]] == [  # sinks of other tests may still log
        ("WARNING", "label.unlisted job=job"),
        ("WARNING", "columns.unknown job=job table=t count=1 unknown=nmae unnamed=name"),
    ]
