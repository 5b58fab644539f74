"""The feed keeps its pace, cuts transactions at file borders, and shows whole files only."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import orjson
import pytest

from starrocks_demo.workload import Feed, Piece, Workload, WorkloadOptions
from tests.support.manual_clock import ManualClock


class BusyClock(ManualClock):
    """Every sleep takes `delay` longer than asked for, as on a busy machine."""

    delay = 0.0

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds + self.delay)


def lines_of(folder: Path) -> list[list[dict[str, Any]]]:
    return [[orjson.loads(line) for line in path.read_bytes().splitlines()] for path in sorted(folder.iterdir())]


def data_rows(events: list[dict[str, Any]]) -> int:
    return sum(event["type"] == "DATA" for event in events)


@pytest.fixture
def clock() -> BusyClock:
    return BusyClock(100.0)


def feed_into(folder: Path, clock: BusyClock, *, rate: float = 1000, bulk_every: int = 500, **more: Any) -> Feed:
    options = WorkloadOptions(partitions=3, seed=1, bulk_every=bulk_every)
    return Feed(Workload(options), folder, rate=rate, clock=clock, **more)


def test_keeps_the_rate_and_writes_several_files_a_second(tmp_path: Path, clock: BusyClock) -> None:
    feed = feed_into(tmp_path, clock)
    feed.run(10, threading.Event())
    files = lines_of(tmp_path)
    assert sum(map(data_rows, files[:-1])) == pytest.approx(10_000, rel=0.01)
    assert len(files) == 51
    assert feed.files == 51
    assert feed.rows == sum(map(data_rows, files)) - data_rows_of_tails(files[-1])


def data_rows_of_tails(events: list[dict[str, Any]]) -> int:
    begins = [event["txn_id"] for event in events if event["type"] == "BEGIN"]
    return sum(event["type"] == "DATA" and event["txn_id"] in begins for event in events)


def test_catches_up_but_never_floods(tmp_path: Path, clock: BusyClock) -> None:
    clock.delay = 0.4
    feed = feed_into(tmp_path, clock, bulk_every=0)
    start = clock.monotonic()
    feed.run(6, threading.Event())
    assert feed.rows == pytest.approx(1000 * (clock.monotonic() - start), rel=0.03)
    clock.delay = 30.0
    flooded = feed_into(tmp_path / "flooded", clock, bulk_every=0)
    (tmp_path / "flooded").mkdir()
    flooded.run(60, threading.Event())
    assert flooded.rows < 2 * 1000 + 200


def test_transactions_are_open_across_file_borders_and_every_one_ends(tmp_path: Path, clock: BusyClock) -> None:
    feed_into(tmp_path, clock).run(5, threading.Event())
    files = lines_of(tmp_path)
    first_file = {event["txn_id"]: number for number, events in reversed(list(enumerate(files))) for event in events}
    crossing = sum(
        first_file[event["txn_id"]] < number
        for number, events in enumerate(files)
        for event in events
        if event["type"] == "END"
    )
    assert crossing > len(files)
    begun_ids = [event["txn_id"] for events in files for event in events if event["type"] == "BEGIN"]
    ended = {event["txn_id"] for events in files for event in events if event["type"] == "END"}
    never = [name for name in begun_ids if name not in ended]
    assert all("unfinished" in name for name in never)
    assert {name[:2] for name in never[-3:]} == {"p0", "p1", "p2"}


def test_partition_order_is_the_file_order(tmp_path: Path, clock: BusyClock) -> None:
    feed_into(tmp_path, clock).run(3, threading.Event())
    positions: dict[str, list[int]] = {}
    for events in lines_of(tmp_path):
        for event in events:
            positions.setdefault(event["source_partition"], []).append(event["position"])
    assert sorted(positions) == ["0", "1", "2"]
    assert all(position == list(range(len(position))) for position in positions.values())
    counts = [len(position) for position in positions.values()]
    assert max(counts) < 2 * min(counts)


def test_tells_when_each_transaction_became_visible(tmp_path: Path, clock: BusyClock) -> None:
    notices: list[tuple[list[tuple[int, int]], float, bool]] = []

    def on_visible(piece: Piece, at: float) -> None:
        newest = sorted(tmp_path.glob("[!.]*"))[-1]
        notices.append((piece.ended, at, newest.read_bytes() == b"".join(piece.lines)))

    feed = feed_into(tmp_path, clock, on_visible=on_visible)
    feed.run(4, threading.Event())
    ended = [transaction for transactions, _, _ in notices for transaction in transactions]
    assert len(ended) == len(set(ended)) == feed.transactions
    for partition in range(3):
        numbers = [number for owner, number in ended if owner == partition]
        assert numbers == list(range(1, len(numbers) + 1))
    assert all(whole for _, _, whole in notices)
    assert [at for _, at, _ in notices] == sorted(at for _, at, _ in notices)


def test_leaves_no_half_written_file(tmp_path: Path, clock: BusyClock) -> None:
    feed = feed_into(tmp_path, clock)
    feed.write(10)
    feed.write(10)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000000.jsonl", "00000001.jsonl"]


def test_stops_on_request(tmp_path: Path, clock: BusyClock) -> None:
    stop = threading.Event()
    stop.set()
    feed = feed_into(tmp_path, clock)
    feed.run(1000, stop)
    assert feed.rows == 0
    assert feed.files == 1


def test_a_slow_feed_writes_whole_rows_only(tmp_path: Path, clock: BusyClock) -> None:
    feed = feed_into(tmp_path, clock, rate=2)
    feed.run(10, threading.Event())
    assert feed.rows >= 19


def test_refuses_a_rate_of_zero(tmp_path: Path, clock: BusyClock) -> None:
    with pytest.raises(ValueError, match="rate"):
        feed_into(tmp_path, clock, rate=0)
