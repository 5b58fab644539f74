"""Positions of applications: their forms, and that none is passed before all commits up to it are behind the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, strategies as st

from starrocks_txn_ops.positions import Judgement, Kind, Position, Reached, has_passed, parse, place_text
from starrocks_txn_sink.errors import OptionError, PositionOfOtherSource
from starrocks_txn_sink.protocol.source_places import BINLOG, GIVEN_UP, LSN
from tests.support.depth import examples

UUID, OTHER = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "4e11fa47-71ca-11e1-9e33-c80aa9429562"


def reached(*rows: tuple[str, str, int] | tuple[str, str], **marks: str) -> Reached:
    """What a ledger says: places as (partition, log, number), and the partition's own number under ""."""
    of_ledger = [("position" if not log else "place", f"{name} {log}".strip(), n, None) for name, log, n in rows]  # type: ignore[misc]
    return Reached.of_rows([*of_ledger, *(("snapshot", name, None, mark) for name, mark in marks.items())])


def passed(ledger: Reached, text: str, partition: str = "") -> bool:
    return has_passed(ledger, parse(text), partition).passed


@pytest.mark.parametrize(
    ("text", "kind", "numbers"),
    [
        ("0/16B3748", Kind.LSN, {LSN: 0x16B3748}),
        (" 1a/ff ", Kind.LSN, {LSN: (0x1A << 32) + 0xFF}),
        ("0-1-123", Kind.MARIADB, {"0-1": 123}),
        ("0-1-123,5-01-7, 0-1-99", Kind.MARIADB, {"0-1": 123, "5-1": 7}),
        (f"{UUID.upper()}:23", Kind.MYSQL, {UUID: 23}),
        (f"{UUID}:1-5:7-9,\n{OTHER}:1", Kind.MYSQL, {UUID: 9, OTHER: 1}),
        (f"{UUID}:7:Tag:1-3", Kind.MYSQL, {UUID: 7, f"{UUID}:tag": 3}),
        ("binlog.000003:1234", Kind.BINLOG, {BINLOG: (3 << 32) + 1234}),
        ("my.server-bin.000003:4", Kind.BINLOG, {BINLOG: (3 << 32) + 4}),
        ("1234", Kind.NUMBER, {"": 1234}),
    ],
)
def test_each_form_is_read(text: str, kind: Kind, numbers: dict[str, int]) -> None:
    position = parse(text)
    assert (position.kind, position.numbers) == (kind, numbers)
    assert parse(text, kind) == position


@pytest.mark.parametrize(
    "text",
    [
        *("", "now", "-1", "0/", "0/16B37480A", "/1", "0-1", "0-1-2-3", "0-1-x", "0-1-2,x", "1" * 20),
        *(UUID, f"{UUID}:", f"{UUID}:tag", f"{UUID}:1-", f"{UUID}:1,0-1-2"),
        *("binlog.3", "binlog:3", "binlog.x:3", "binlog.1:2,binlog.1:3"),
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="has no known form"):
        parse(text)


def test_a_position_of_another_kind_than_expected_is_refused() -> None:
    with pytest.raises(OptionError, match=r"0/1 is an LSN of PostgreSQL, not a GTID of MariaDB\."):
        parse("0/1", Kind.MARIADB)


@given(st.text(alphabet="0123456789abcdefABCDEF-:/,. \n" + "tag_", max_size=60))
def test_any_text_is_a_position_or_refused(text: str) -> None:
    try:
        position = parse(text)
    except OptionError:
        return
    assert position.numbers
    assert all(number >= 0 for number in position.numbers.values())


@given(st.integers(0, (1 << 63) - 1))
def test_an_lsn_is_read_as_postgresql_writes_it(number: int) -> None:
    assert parse(place_text(LSN, number)).numbers == {LSN: number}


# --- one source ---

LOGS = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), min_size=1, max_size=30)
"""Commits of a domain in their order: the server of each, and how much its number is above the last one."""


@examples(300)
@given(LOGS, st.integers(0, 30), st.integers(0, 30))
def test_a_gtid_of_mariadb_is_passed_once_its_commit_and_all_before_are_visible(
    steps: Sequence[tuple[int, int]], visible: int, asked: int
) -> None:
    """`visible` commits are visible. A commit that is not never passes, one that is does at once."""
    number, log = 0, list[tuple[str, int]]()
    for source, step in steps:
        number += step
        log.append((f"0-{source}", number))
    visible, asked = min(visible, len(log)), min(asked, len(log) - 1)
    places: dict[str, int] = dict(log[:visible])
    ledger = reached(*(("shop", *place) for place in places.items()))
    server, number = log[asked]
    assert passed(ledger, f"{server}-{number}") is (asked < visible)


@examples(300)
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=20, unique=True), st.integers(0, 20), st.integers(0, 1100))
def test_an_lsn_is_passed_once_no_commit_up_to_it_is_missing(commits: list[int], visible: int, asked: int) -> None:
    commits.sort()
    visible = min(visible, len(commits))
    ledger = reached(*(("shop", log, commits[visible - 1]) for log in ("", LSN) if visible))
    if passed(ledger, f"0/{asked:X}"):
        assert all(commit <= commits[visible - 1] for commit in commits if commit <= asked)
    elif visible:
        assert asked > commits[visible - 1]


def test_a_place_in_a_binlog_counts_files_first() -> None:
    ledger = reached(("shop", "", (3 << 32) + 100), ("shop", BINLOG, (3 << 32) + 100))
    assert passed(ledger, "binlog.000002:99999")
    assert passed(ledger, "binlog.000003:100")
    assert not passed(ledger, "binlog.000003:101")
    assert not passed(ledger, "binlog.000004:1")


def test_lsns_and_places_in_a_binlog_move_with_parts_of_a_micro_batch() -> None:
    assert passed(reached(("shop", LSN, 5), ("shop", "", 9)), "0/9")
    assert passed(reached(("shop", BINLOG, 5), ("shop", "", 9)), "binlog.000000:9")


def test_a_binlog_of_a_source_that_got_gtids_does_not_count() -> None:
    ledger = reached(("shop", BINLOG, 5), ("shop", UUID, 3), ("shop", "", 9))
    with pytest.raises(PositionOfOtherSource, match="is asked by GTID"):
        passed(ledger, "binlog.000000:5")
    assert passed(ledger, f"{UUID}:3")


@pytest.mark.parametrize(
    ("places", "text", "expected"),
    [
        ({LSN: 9}, "0/9", True),
        ({LSN: 9}, "0/8", False),
        ({"0-1": 9, "0-2": 8, "1-1": 3}, "0-1-9,1-1-3", True),
        ({"0-1": 9, "0-2": 10}, "0-1-9", False),  # another server of the domain has gone on
        ({"0-1": 9, "1-1": 3}, "0-1-9", False),  # a domain that the position does not know
        ({UUID: 9}, f"{UUID}:9", True),
        ({UUID: 9, OTHER: 1}, f"{UUID}:9", False),
    ],
)
def test_a_job_is_at_a_position_if_nothing_behind_it_is_visible(
    places: dict[str, int], text: str, expected: bool
) -> None:
    ledger = reached(("shop", "", 9), *(("shop", log, number) for log, number in places.items()))
    judgement = has_passed(ledger, parse(text))
    assert (judgement.passed, judgement.at) == (True, expected)


def test_a_set_of_mysql_is_passed_when_all_its_servers_are() -> None:
    ledger = reached(("shop", UUID, 23), ("shop", OTHER, 5), ("shop", "", 7))
    assert passed(ledger, f"{UUID}:1-23,{OTHER}:1-5")
    judgement = has_passed(ledger, parse(f"{UUID}:1-23,{OTHER}:1-6"))
    assert judgement == Judgement(False, "shop", 7, f"it is at {OTHER}:5")


def test_a_number_is_that_of_the_one_source_partition_or_of_the_named_one() -> None:
    one = reached(("p-0", "", 58), ("p-0#quarantine", "", 99))
    assert (passed(one, "58"), passed(one, "59")) == (True, False)
    two = reached(("p-0", "", 58), ("p-1", "", 99))
    with pytest.raises(OptionError, match="may be of several source partitions: p-0, p-1"):
        passed(two, "58")
    assert (passed(two, "60", "p-1"), passed(two, "60", "p-0")) == (True, False)
    lacking = has_passed(two, parse("1"), "p-2")
    assert lacking.lacks == "nothing of this source partition is visible; the ledger has p-0, p-1"


# --- other sources ---


@pytest.mark.parametrize(
    ("places", "text"),
    [
        ({"0-1": 9}, "0/1"),
        ({UUID: 9}, "0/1"),
        ({BINLOG: 9}, "0/1"),
        ({LSN: 9}, "0-1-1"),
        ({UUID: 9}, "0-1-1"),
        ({LSN: 9}, f"{UUID}:1"),
        ({"0-1": 9}, f"{UUID}:1"),
        ({"0-1": 9}, "binlog.000001:1"),  # its files begin anew at another primary
        ({UUID: 9}, f"{OTHER}:1"),
        ({UUID: 9}, f"{UUID}:tag:1"),
        ({UUID: 9}, f"{UUID}:1,{OTHER}:1"),
        ({"0-1": 9}, "1-1-10"),  # another domain
        ({"0-1": 9}, "0-2-9"),  # another server, behind which the domain is
        ({"0-1": 9, "1-1": 99}, "0-1-3,0-2-9"),
    ],
)
def test_a_position_of_another_source_is_an_error(places: dict[str, int], text: str) -> None:
    ledger = reached(("shop", "", 1 << 40), *(("shop", log, number) for log, number in places.items()))
    with pytest.raises(PositionOfOtherSource, match="The job has read: shop at "):
        passed(ledger, text)


def test_a_new_primary_of_mariadb_is_waited_for() -> None:
    judgement = has_passed(reached(("shop", "0-1", 9), ("shop", "", 7)), parse("0-2-10"))
    assert judgement == Judgement(False, "shop", 7, "no transaction of the server 0-2 is visible")


def test_the_source_is_found_by_its_log() -> None:
    ledger = reached(("a", LSN, 5), ("b", "0-1", 7), ("c", "0-3", 9), ("a", "", 5), ("b", "", 1), ("c", "", 2))
    assert has_passed(ledger, parse("0/5")).partition == "a"
    assert has_passed(ledger, parse("0-3-9")).partition == "c"
    assert has_passed(ledger, parse("0-3-9"), "c").partition == "c"
    with pytest.raises(PositionOfOtherSource):
        passed(ledger, "0-3-7", "b")
    two = reached(("a", LSN, 5), ("b", LSN, 7))
    with pytest.raises(OptionError, match="several source partitions: a, b"):
        passed(two, "0/5")
    assert not passed(two, "0/6", "a")
    assert passed(two, "0/6", "b")


@pytest.mark.parametrize("partition", ["", "shop", "shop@2026-11-29T01:02:03.456Z"])
def test_a_source_that_followed_another_one_counts_alone(partition: str) -> None:
    follower = "shop@2026-11-29T01:02:03.456Z"
    ledger = reached(("shop", LSN, 900), ("shop", "", 900), (follower, LSN, 10), (follower, "", 10))
    assert has_passed(ledger, parse("0/B"), partition) == Judgement(False, follower, 10, "it is at 0/A")
    assert has_passed(ledger, parse("0/A"), partition).passed
    unread = reached(("shop", LSN, 900), ("shop", "", 900), (follower, "", 1))  # a snapshot of the new one alone
    assert not passed(unread, "0/A", partition)


# --- what is not known yet ---


def test_nothing_is_passed_where_the_ledger_says_nothing() -> None:
    assert has_passed(Reached(), parse("0/1")).lacks == "nothing of the source is visible"
    early = has_passed(reached(("shop", "", 1 << 50)), parse("0/1"))  # of a snapshot, or of an earlier release
    assert not early.passed
    assert early.lacks.startswith("the ledger says no place in the source's log")


@pytest.mark.parametrize(
    ("marks", "lacks"),
    [
        ({"shop:a": "over", "shop:b": "reading"}, "the source's first snapshot is not over (1 of 2 tables)"),
        (
            {"shop:a": "over"},
            "the source's first snapshot is not over (1 of 1 tables;",
        ),
        ({"shop:a": "over", "shop:": "over"}, ""),
        ({"shop:a": "one", "shop:": "over"}, ""),
        ({"shop:a": "spread", "shop:": "over"}, ""),
        ({"shop:a": "spread", "shop:b": "reading", "shop:": "over"}, "is not over"),
        ({"shop:a": "spread"}, "is not over"),
        ({"other:a": "reading"}, ""),
    ],
)
@pytest.mark.parametrize("text", ["0/5", "5"])
def test_nothing_is_passed_before_the_first_snapshot_is_over(marks: dict[str, str], lacks: str, text: str) -> None:
    ledger = reached(("shop", LSN, 5), ("shop", "", 5), **marks)
    judgement = has_passed(ledger, parse(text))
    assert judgement.passed is not bool(lacks)
    assert lacks in judgement.lacks


@pytest.mark.parametrize("text", ["0/5", "5"])
def test_what_was_given_up_is_counted_and_is_no_log(text: str) -> None:
    ledger = reached(("shop", LSN, 5), ("shop", "", 5), ("shop", GIVEN_UP, 2))
    assert has_passed(ledger, parse(text)) == Judgement(True, "shop", 5, given_up=2)
    only = reached(("shop", "", 5), ("shop", GIVEN_UP, 2))
    assert not passed(only, "0/5")


def test_rows_of_other_kinds_are_passed_over() -> None:
    rows: list[tuple[Any, ...]] = [("driver", "", None, "t"), ("key", "[]", None, ""), ("marker", "gate", None, "x")]
    assert Reached.of_rows(rows) == Reached()
    assert Position(Kind.NUMBER, {"": 1}, "1") == parse("1")
