"""Compaction in a lane: rows left out are marks that keep source transactions whole, and are counted."""

from __future__ import annotations

import itertools
import zlib
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from starrocks_txn_sink.coordinator.actions import Receipt, RegionCount
from starrocks_txn_sink.coordinator.region import RegionRows, Segment, TransactionEnds
from starrocks_txn_sink.errors import OptionError, SourceChanged, TransactionTimedOut
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol.ledger import Position
from starrocks_txn_sink.rows.columns import COLUMNS, FINGERPRINT
from starrocks_txn_sink.rows.replay import Replay
from starrocks_txn_sink.rows.segments import Segmenter
from starrocks_txn_sink.writer.task import CompactedRows, limits
from tests.support.key_forms import survivors
from tests.support.lane_driver import LaneDriver, small_limits
from tests.support.model_server import ModelServer

Row = tuple[str, int, str, bool, str]
TYPES = (pa.string(), pa.int64(), pa.string(), pa.bool_(), pa.string(), pa.int64())


@st.composite
def lanes(draw: st.DrawFn) -> list[Row]:
    """Ordered rows of a lane whose payload is `,{key}` and a number: whole source transactions over two tables."""
    rows: list[Row] = []
    for partition in draw(st.lists(st.sampled_from("abc"), unique=True, min_size=1)):
        for position, size in enumerate(draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))):
            for seq in range(size):
                key, name = draw(st.integers(0, 3)), draw(st.sampled_from(["t", "u"]))
                rows.append((partition, position, name, seq == size - 1, f",{key}/{len(rows)}"))
    return sorted(rows, key=lambda row: row[:2])


def compacted(rows: list[Row]) -> list[tuple[Row, int]]:
    """What the sink's projection gives a lane: replaced rows without payload, and every row's hash as it came."""
    kept = survivors([(row[2], row[4].split("/")[0]) for row in rows])
    hashes = [zlib.crc32(row[4].encode()) for row in rows]
    return [((*row[:4], row[4] if here else ""), number) for row, here, number in zip(rows, kept, hashes, strict=True)]


def batch(rows: list[tuple[Row, int]]) -> pa.RecordBatch:
    columns = zip(*((*row, number) for row, number in rows), strict=True)
    arrays = [pa.array(list(column), kind) for column, kind in zip(columns, TYPES, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=[*COLUMNS, FINGERPRINT])


def play(segmenter: Segmenter, rows: list[tuple[Row, int]], cuts: list[int]) -> list[Segment]:
    bounds = sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})
    return [segment for low, high in itertools.pairwise(bounds) for segment in segmenter.split(batch(rows[low:high]))]


@given(lanes(), st.lists(st.integers(0, 60), max_size=5))
def test_every_source_transaction_ends_and_every_row_is_sent_or_counted(rows: list[Row], cuts: list[int]) -> None:
    tally = CompactedRows()
    segments = list(tally.filter_sent(play(Segmenter(), compacted(rows), cuts)))
    written = [segment for segment in segments if isinstance(segment, RegionRows)]
    assert all(segment.rows and segment.piece.nbytes for segment in written)
    sent = b"".join(bytes(segment.piece) for segment in written).decode()
    assert sorted(sent.split(",")[1:]) == sorted(row[4][1:] for row, _ in compacted(rows) if row[4])
    counts = Counter((row[0], row[2]) for row in rows)
    for segment in written:
        counts[(segment.partition, segment.table)] -= segment.rows
    assert +counts == tally.rows
    assert sum(segment.count for segment in segments if isinstance(segment, TransactionEnds)) == sum(
        row[3] for row in rows
    )


@given(lanes(), st.lists(st.integers(0, 60), max_size=5), st.integers(0, 60))
def test_a_replay_that_is_cut_differently_has_the_same_fingerprints(rows: list[Row], cuts: list[int], cut: int) -> None:
    """What is left out depends on the micro-batch; the fingerprint does not."""
    ends = [place for place, row in enumerate(rows, start=1) if row[3]]
    cut = ends[min(cut, len(ends) - 1)]
    first = play(Segmenter(), compacted(rows[:cut]), cuts)
    positions = {
        segment.partition: Position(segment.partition, segment.last, "c", 0, "job-e-0-0-1", 0, segment.digest)
        for segment in first
        if isinstance(segment, TransactionEnds)
    }
    assert all(known.digest.startswith("hash1:") for known in positions.values())
    again = play(Segmenter(Replay(positions)), compacted(rows), cuts)
    assert (
        sum(segment.count for segment in again if isinstance(segment, TransactionEnds))
        == len(ends) - ends.index(cut) - 1
    )


def test_other_content_is_noticed_also_in_rows_that_are_left_out() -> None:
    rows: list[Row] = [("p", 1, "t", False, ",1/old"), ("p", 1, "t", True, ",1/new")]
    (_, ended) = play(Segmenter(), compacted(rows), [])
    assert isinstance(ended, TransactionEnds)
    known = {"p": Position("p", 1, "c", 0, "job-e-0-0-1", 0, ended.digest)}
    changed: list[Row] = [("p", 1, "t", False, ",1/other"), ("p", 1, "t", True, ",1/new")]
    with pytest.raises(SourceChanged):
        play(Segmenter(Replay(known)), compacted(changed), [])


def test_fingerprints_made_before_compact_was_turned_on_are_not_compared() -> None:
    rows: list[Row] = [("p", 1, "t", True, ",1/a")]
    known = {"p": Position("p", 1, "c", 0, "job-e-0-0-1", 0, "crc1:00000000")}
    assert play(Segmenter(Replay(known)), compacted(rows), []) == []


def test_receipts_say_what_was_left_out() -> None:
    receipt = Receipt("l", 1, "j", 0, 0, (RegionCount("p", "t", 2, 20),), (), 1, 1, 0, recycled=False)
    tally = CompactedRows(Counter({("p", "t"): 3, ("q", "t"): 4}))
    (noted,) = tally.add_counts([receipt])
    assert noted.regions == (RegionCount("p", "t", 2, 20, 3), RegionCount("q", "t", 0, 0, 4))
    assert (noted.rows, noted.compacted) == (2, 7)
    assert Receipt.from_json(noted.to_json()) == noted
    assert CompactedRows().add_counts([receipt, receipt]) == [receipt, receipt]


# --- one StarRocks transaction a lane and micro-batch ---


def options(**changes: object) -> SinkOptions:
    values = {"load_url": "http://fe:8030", "query_url": "mysql://fe:9030", "database": "shop", "compact": True}
    return SinkOptions(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("lanes", [1, 4])
def test_a_lane_commits_only_when_its_rows_are_done(lanes: int) -> None:
    made = limits(options(lanes=lanes, timeout=100))
    assert made.commit_interval is None
    assert made.recycle_at * made.timeout == float("inf")
    other = limits(options(lanes=lanes, timeout=100, compact=False))
    assert other.recycle_at == 0.8


def test_a_micro_batch_that_outlives_the_timeout_fails_whole_and_says_what_to_do() -> None:
    """At the recycle point a reader would see a part of it, and rows of that part may have been left out."""
    made = limits(options(timeout=10))
    server = ModelServer()
    lane = LaneDriver(server, small_limits(timeout=10, recycle_at=made.recycle_at, commit_interval=None))
    for position in range(9):
        lane.write_rows("p", "t", [{"k": position}])
        lane.end("p", position)
        lane.settle()
        lane.clock.advance(1.0)
    assert lane.core.receipts == []
    lane.clock.advance(2.0)
    lane.settle()
    lane.finish()
    assert isinstance(lane.core.error, TransactionTimedOut)
    assert "make micro-batches smaller" in str(lane.core.error)
    assert lane.core.receipts == []
    assert server.open_labels() == []


# --- options ---


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"query_url": None, "delivery": "at-least-once"}, "the sink reads the key columns over SQL"),
        (
            {"properties": {"partial_update": "true", "columns": "id,name"}},
            "sets partial_update: several rows of a key",
        ),
        ({"properties": {"merge_condition": "version"}}, "an earlier row of a key may win"),
        ({"properties": {"max_filter_ratio": "0.1"}}, "may leave out the last row of a key"),
        ({"tables": {"orders": {"where": "id > 1"}}}, r"tables\['orders'\] sets where.*sink of their own"),
        ({"tables": {"orders": {"jsonpaths": '["$.a"]'}}}, "changes the place of a row's key"),
    ],
)
def test_what_cannot_go_with_compact_is_refused(changes: dict[str, object], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        options(**changes)


def test_what_changes_nothing_is_let_through() -> None:
    assert options(properties={"max_filter_ratio": "0.0", "partial_update": "false", "columns": "id,v"}).compact
