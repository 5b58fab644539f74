"""What a replay leaves out, and what it notices."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink.coordinator.model import PositionSpan, RegionRows
from starrocks_txn_sink.errors import InputError, SourceChanged
from starrocks_txn_sink.protocol.ledger import Position
from starrocks_txn_sink.rows.columns import COLUMNS
from starrocks_txn_sink.rows.segments import Replay, Segmenter, Skip
from starrocks_txn_sink.rows.unpositioned import UnpositionedSegmenter

Row = tuple[str, int, str, bool, str]
TYPES = (pa.string(), pa.int64(), pa.string(), pa.bool_(), pa.string())


def batch(rows: list[Row]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else [()] * 5
    arrays = [pa.array(list(column), kind) for column, kind in zip(columns, TYPES, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=list(COLUMNS))


def rows_of(sizes: list[int], partition: str = "p", salt: str = "") -> list[Row]:
    """Source transactions of the given sizes at positions 10, 20, …"""
    return [
        (partition, 10 * position, f"t{seq % 2}", seq == size - 1, f",{position}.{seq}{salt}")
        for position, size in enumerate(sizes, start=1)
        for seq in range(size)
    ]


def play(segmenter: Segmenter, rows: list[Row], cuts: list[int]) -> tuple[dict[str, str], list[PositionSpan]]:
    pieces: dict[str, str] = {}
    ended = []
    bounds = sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})
    for low, high in itertools.pairwise(bounds):
        for segment in segmenter.split(batch(rows[low:high])):
            if isinstance(segment, RegionRows):
                pieces[segment.table] = pieces.get(segment.table, "") + bytes(segment.piece).decode()
            else:
                ended.append(segment)
    return pieces, ended


def known(position: int, digest: str = "", batch_id: int = 3, label: str = "job-e1-0-3-1_0") -> Position:
    return Position("p", position, "c", batch_id, label, 0, digest)


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=8),
    st.lists(st.integers(0, 40), max_size=5),
    st.lists(st.integers(0, 40), max_size=5),
    st.integers(0, 9),
)
def test_a_replay_cut_in_another_way_writes_what_is_missing_and_nothing_else(
    sizes: list[int], first_cuts: list[int], second_cuts: list[int], done_count: int
) -> None:
    rows = rows_of(sizes)
    done_count = min(done_count, len(sizes))
    cut = sum(sizes[:done_count])
    _, ended = play(Segmenter(), rows[:cut], first_cuts)
    digest = ended[-1].digest if ended else ""
    replay = Replay({"p": known(10 * done_count, digest)} if done_count else {})
    contents, again = play(Segmenter(replay), rows, second_cuts)
    missing: dict[str, str] = {}
    for _, _, table, _, payload in rows[cut:]:
        missing[table] = missing.get(table, "") + payload
    assert contents == missing
    assert sum(segment.source_transactions for segment in again) == len(sizes) - done_count
    assert (replay.skipped_rows, replay.skipped_transactions) == (cut, done_count)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.lists(st.integers(0, 30), max_size=5))
def test_the_fingerprint_does_not_depend_on_how_batches_are_cut(sizes: list[int], cuts: list[int]) -> None:
    _, whole = play(Segmenter(), rows_of(sizes), [])
    _, pieces = play(Segmenter(), rows_of(sizes), cuts)
    assert whole[-1].digest == pieces[-1].digest != ""


@pytest.mark.parametrize("cuts", [[], [1], [4], [1, 2, 3, 4, 5, 6]])
def test_other_content_at_the_ledgers_position_is_an_error(cuts: list[int]) -> None:
    _, ended = play(Segmenter(), rows_of([2, 3]), [])
    with pytest.raises(SourceChanged, match=r"source partition p, position 20.*job-e1.*check_replays=False"):
        play(Segmenter(Replay({"p": known(20, ended[-1].digest)})), rows_of([2, 3, 1], salt="x"), cuts)
    play(Segmenter(Replay({"p": known(20, ended[-1].digest)}, compare=False)), rows_of([2, 3, 1], salt="x"), cuts)
    play(Segmenter(Replay({"p": known(20, "other way:1234")})), rows_of([2, 3, 1], salt="x"), cuts)


# --- a source that is another one now ---


def lanes_of(known_at: Position, micro_batches: list[list[Row]], cuts: list[int], **terms: Any) -> list[str]:
    """What lanes of successive micro-batches write; each gets the skips that the ones before have reported."""
    skips: dict[str, Skip] = {}
    all_contents: list[str] = []
    for rows in micro_batches:
        replay = Replay({"p": known_at}, skips=dict(skips), **terms)
        contents, _ = play(Segmenter(replay), rows, cuts)
        skips |= {name: replay.skips[name] for name in replay.changed}
        all_contents += contents.values()
    return all_contents


def at(*positions: int, size: int = 2) -> list[Row]:
    return [("p", place, "t", seq == size - 1, f",{place}.{seq}") for place in positions for seq in range(size)]


@pytest.mark.parametrize("cuts", [[], [1], [2, 4], [1, 2, 3, 4, 5, 6, 7]])
@pytest.mark.parametrize(
    "micro_batches",
    [[at(5, 15, 25, 35)], [at(5, 15), at(25, 35)], [at(5, 15), [], at(25), at(35, 45)], [at(25), at(35)]],
)
def test_a_recreated_source_is_an_error_where_it_passes_the_ledgers_position(
    micro_batches: list[list[Row]], cuts: list[int]
) -> None:
    with pytest.raises(SourceChanged, match=r"partition p went on to position 35 .* at position 30, .*job-e1.*`job`"):
        lanes_of(known(30, "crc1:1"), micro_batches, cuts)
    assert lanes_of(known(30, "crc1:1"), micro_batches, cuts, compare=False)


@given(
    st.integers(1, 6),
    st.integers(1, 6),
    st.lists(st.integers(0, 6), max_size=4),
    st.lists(st.integers(0, 14), max_size=4),
)
def test_the_same_source_is_no_error_however_its_replay_is_cut(
    done_count: int, first: int, ends: list[int], cuts: list[int]
) -> None:
    positions = [10 * number for number in range(first, 8)]
    bounds = sorted({0, *(end for end in ends if end < len(positions)), len(positions)})
    micro_batches = [at(*positions[low:high]) for low, high in itertools.pairwise(bounds)]
    all_contents = lanes_of(known(10 * done_count), micro_batches, cuts)
    assert "".join(all_contents) == "".join(f",{place}.0,{place}.1" for place in positions if place > 10 * done_count)


def test_a_skip_to_an_older_position_says_nothing_any_more() -> None:
    skips = {"p": Skip(30, met=False), "o": Skip(40, met=False)}
    replay = Replay({"p": known(40)}, skips=skips)
    assert play(Segmenter(replay), at(50), [])[0] == {"t": ",50.0,50.1"}
    assert replay.changed == set()
    play(Segmenter(replay), at(60), [])


def test_an_end_that_was_met_counts_for_the_whole_run() -> None:
    replay = Replay({"p": known(30)}, skips={"p": Skip(30, met=True)})
    assert play(Segmenter(replay), at(20, 40), [])[0] == {"t": ",40.0,40.1"}


def test_a_source_that_goes_back_in_the_same_run_is_an_error() -> None:
    position = known(20, batch_id=3)
    with pytest.raises(InputError, match="went back to position 10, after position 20 was written in micro-batch 3"):
        play(Segmenter(Replay({"p": position}, epoch="e1", batch=4)), rows_of([1, 1, 1]), [])
    for replay in (Replay({"p": position}, epoch="e1", batch=3), Replay({"p": position}, epoch="e2", batch=4)):
        contents, _ = play(Segmenter(replay), rows_of([1, 1, 1]), [])
        assert contents == {"t0": ",3.0"}


def test_partitions_are_told_apart() -> None:
    rows = rows_of([1, 1], "o") + rows_of([1, 1], "p")
    contents, _ = play(Segmenter(Replay({"p": known(10)})), rows, [])
    assert contents == {"t0": ",1.0,2.0,2.0"}


# --- plain rows ---


def plain(values: list[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "table": pa.array([f"t{value % 2}" for value in values], pa.string()),
            "payload": pa.array([f",{value}" for value in values], pa.string()),
            "hash": pa.array([value * 2**61 - 2**62 for value in values], pa.int64()),
        }
    )


def unit(values: list[int], committed: Position | None = None, number: int = 7, compare: bool = True) -> list[Any]:
    segmenter = UnpositionedSegmenter("c/0", number, committed, compare)
    return [*segmenter.split(plain(values[:2])), *segmenter.split(plain(values[2:])), *segmenter.end()]


def test_plain_rows_are_one_unit_whose_digest_ignores_their_order() -> None:
    segments = unit([1, 2, 3])
    assert b"".join(bytes(s.piece) for s in segments if isinstance(s, RegionRows) and s.table == "t1") == b",1,3"
    end = segments[-1]
    assert (end.partition, end.last, end.source_transactions) == ("c/0", 7, 0)
    shuffled = [1, 2, 3]
    random.Random(4).shuffle(shuffled)
    assert unit(shuffled)[-1].digest == end.digest
    assert unit([1, 2])[-1].digest != end.digest
    assert unit([]) == []


def test_a_unit_that_is_written_is_left_out_and_compared() -> None:
    position = Position("c/0", 7, "c", 7, "label", 3, unit([1, 2, 3])[-1].digest)
    assert unit([3, 1, 2], position) == []
    with pytest.raises(SourceChanged, match="micro-batch 7"):
        unit([1, 2], position)
    assert unit([1, 2], position, compare=False) == []
    assert len(unit([1, 2], position, number=8)) == 3
    with pytest.raises(SourceChanged, match="the ledger has micro-batch 7"):
        unit([1, 2], position, number=6)


def test_a_micro_batch_is_one_source_partition_of_the_ledger_whatever_the_number_of_lanes() -> None:
    positions = {
        name: Position(name, number, "c", number, "label", 0, "")
        for name, number in (("c/0/1", 5), ("c/1/2", 9), ("another/0/1", 9), ("d/c/0/1", 9))
    }
    old, new = (UnpositionedSegmenter.of("c", number, positions, compare=True) for number in (5, 6))
    assert (old.name, old.replayed, new.replayed) == ("c/0/1", True, False)
    assert not UnpositionedSegmenter.of("e", 5, positions, compare=True).replayed


def test_the_shares_of_several_lanes_make_the_digest_of_one() -> None:
    whole = UnpositionedSegmenter("c/0/1", 7)
    list(whole.split(plain([1, 2, 3, 4])))
    joined = UnpositionedSegmenter("c/0/1", 7)
    for values in ([4, 1], [], [3, 2]):
        lane = UnpositionedSegmenter("c/0/1", 7)
        list(lane.split(plain(values)))
        joined.add(lane.rows, lane.sum)
    assert joined.digest == whole.digest
    joined.committed = Position("c/0/1", 7, "c", 7, "label", 4, whole.digest)
    joined.compare_replay()
    joined.add(1, 5)
    with pytest.raises(SourceChanged, match="micro-batch 7"):
        joined.compare_replay()
