"""Rooms of tables: what a label may have open, and what waits (wire contract 4.16)."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence

import pytest

from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.coordinator.model import LaneShare, Receipt, RegionCount
from starrocks_txn_sink.coordinator.table_room import ScanThreads, TableRoom, TableRooms
from starrocks_txn_sink.errors import TooManyTables
from starrocks_txn_sink.sink.open_loads import OpenLoads


def loaded(tables: str) -> LaneShare:
    regions = tuple(RegionCount("p", table, 1, 1) for table in tables)
    return LaneShare((Receipt("l", 1, "j", 1, regions, (), 1, 1, 0, False),))


def left(**ahead: Sequence[Sequence[str]]) -> LaneShare:
    return LaneShare(left=ahead)


@pytest.mark.parametrize(
    ("cores", "per_core", "room"), [(1, 8, 7), (2, 8, 14), (16, 8, 112), (2, 64, 112), (1, 2, 2), (1, 1, 1)]
)
def test_a_thread_a_core_stays_free_for_queries(cores: int, per_core: int, room: int) -> None:
    assert ScanThreads(cores, per_core).room == room


def test_one_lane_may_take_any_tables() -> None:
    rooms = TableRooms(3, names=frozenset("ab"))
    assert rooms.room == TableRoom(3)
    rooms.check([loaded("abc")])
    assert not rooms.go_on([loaded("abc")])
    assert rooms.needed == 4


def test_lanes_together_never_have_more_tables_than_fit() -> None:
    rooms = TableRooms(7, lanes=3, names=frozenset("ab"))
    assert rooms.room == TableRoom(3, frozenset("ab"))  # and one more table of each lane
    rooms.check([loaded("abc"), loaded("abd"), loaded("b")])
    assert rooms.room == TableRoom(5, frozenset("abcd"))
    assert TableRooms(2, lanes=3).room == TableRoom(0)
    assert TableRooms(2, lanes=2, names=frozenset("abc")).room == TableRoom(2, frozenset("ab"))


def test_the_next_label_has_room_for_what_waits() -> None:
    rooms = TableRooms(2, lanes=2)
    assert rooms.go_on([left(p=[["c", "d"], ["e"]]), left(q=[["d"]])])
    assert rooms.room == TableRoom(2, frozenset("cd"))
    assert rooms.needed == 6
    rooms = TableRooms(3, lanes=2)
    assert rooms.go_on([left(p=[["a"], ["b", "c"]], q=[["b"], ["d"]])])
    assert rooms.room.names == frozenset("abc")  # the cheapest next ones


def test_a_source_transaction_that_waits_as_a_whole_does_so_until_it_has_room() -> None:
    rooms = TableRooms(2, lanes=2)
    rooms.make_wait({"p": 6, "q": 8})
    assert rooms.room == TableRoom(1, waits={"p": 6, "q": 8})
    rooms.go_on([left(p=[["a", "b"]], q=[["b", "c"]])])
    assert rooms.room == TableRoom(2, frozenset("ab"), {"q": 8})


def test_one_source_transaction_with_too_many_tables_ends_the_write_once_all_others_are_written() -> None:
    rooms = TableRooms(2, ScanThreads(1, 4))
    assert rooms.go_on([left(p=[["a", "b", "c"]], q=[["a"]])])
    assert rooms.names == frozenset("a")
    with pytest.raises(TooManyTables, match=r"3 tables.* room for 2.*pipeline_connector_scan_thread_num_per_cpu = 4"):
        rooms.go_on([left(p=[["a", "b", "c"]])])


def test_a_guessed_number_of_threads_refuses_nothing() -> None:
    rooms = TableRooms(2, ScanThreads(1, 4, exact=False))
    assert rooms.go_on([left(p=[["a", "b", "c"]])])
    assert rooms.room == TableRoom(3, frozenset("abc"))
    rooms.check([loaded("abc")])


def test_a_write_grows_for_a_source_transaction_that_has_room_alone() -> None:
    rooms = TableRooms(2, ScanThreads(1), grow=lambda tables: tables)
    assert rooms.go_on([left(p=[["a", "b", "c"]])])
    assert (rooms.most, rooms.names) == (3, frozenset("abc"))


def test_rows_without_positions_are_one_source_transaction() -> None:
    TableRooms(3).check([loaded("ab"), loaded("bc")])
    with pytest.raises(TooManyTables):
        TableRooms(2, ScanThreads(1, 4)).check([loaded("ab"), loaded("bc")])


def test_writes_of_one_process_share_the_room() -> None:
    loads, deadline = OpenLoads(), Deadline.after(30, SystemClock())
    with loads.part("fe", "first", 14, 2, 8, deadline) as first:
        assert first.size == 8
        with loads.part("fe", "second", 14, 2, 8, deadline) as second:
            assert second.size == 6
            assert loads.held("fe") == 14
        with loads.part("other", "third", 14, 2, 8, deadline) as third:
            assert third.size == 8
    loads.learn("fe", "first", frozenset("ab"), 3)
    assert loads.tables("fe", "first") == frozenset("ab")
    with loads.part("fe", "first", 14, 2, 8, deadline) as first:
        assert first.size == 6
    assert loads.held("fe") == 0


def test_a_write_waits_for_its_least_and_for_all_that_a_source_transaction_needs() -> None:
    loads, deadline = OpenLoads(), Deadline.after(30, SystemClock())
    sizes: list[int] = []

    def second() -> None:
        with loads.part("fe", "second", 7, 5, 4, deadline) as part:
            sizes.append(part.size)

    with loads.part("fe", "first", 7, 2, 4, deadline) as first:
        thread = threading.Thread(target=second)
        thread.start()
        assert first.grow(8, deadline) == 7  # more than there is: all
        assert not sizes
    thread.join(10)
    assert sizes == [5]
    with loads.part("fe", "first", 7, 2, 4, deadline) as first:
        assert first.grow(7, deadline) == 7


def test_after_a_commit_that_waited_for_threads_labels_have_half_of_the_tables() -> None:
    rooms = TableRooms(6, lanes=2, names=frozenset("abcdef"))
    rooms.check([loaded("abcdef")])
    rooms.halve()
    assert rooms.room == TableRoom(3, frozenset("abc"))
    rooms.go_on([left(p=[["d"], ["e", "f"]], q=[["g"]])])
    assert rooms.names == frozenset("dg")
    rooms.halve()
    rooms.halve()
    assert (rooms.wanted, rooms.halvings) == (1, 2)
    rooms.go_on([left(p=[["d", "e"]])])  # one source transaction
    assert rooms.room == TableRoom(2, frozenset("de"))
    assert re.search("3 open loads.* 16 threads", rooms.held([loaded("ab")]).message)
