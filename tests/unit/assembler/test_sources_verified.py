"""Verified transactions: rule by rule, then any interleaving, repetition and restart against the plain expectation."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink.assembler.verified import gtids, intake
from starrocks_txn_sink.assembler.verified.gtids import MOST_RANGES, SeenGtids
from starrocks_txn_sink.assembler.verified.rules import MANY_BLOBS, VerifiedPolicy
from starrocks_txn_sink.errors import InputError, OptionError, SourceChanged, SourceTransactionError
from tests.support.verified_source import (
    FLAWS,
    Connector,
    Fields,
    Stage,
    Transaction,
    begin,
    end,
    read,
    repeated_later,
    row,
)


def test_rows_and_end_are_joined_by_the_id_over_micro_batches() -> None:
    stage = Stage()
    assert stage.feed(begin("7", 1, 10), row("7", 2, "public.b", 22)) == []
    assert stage.feed(end("7", 2, 30, {"public.a": 1, "public.b": 1})) == []
    (first, second) = stage.feed(row("7", 1, "public.a", 21))
    assert stage.places() == [("7", 30, 0, False), ("7", 30, 1, True)]
    assert (first["table"], first["row"], second["table"]) == ("a", '{"t": "7", "n": 1}', "b")
    assert stage.adds_up()
    assert (stage.blobs, stage.level.open, stage.counted.released) == ({}, 0, 1)


def test_the_end_may_come_before_any_row() -> None:
    stage = Stage()
    stage.feed(end("7", 1, 30, {"public.a": 1}))
    assert stage.feed(row("7", 1))
    assert stage.adds_up()


def test_commit_order_holds_back_what_committed_later() -> None:
    """The second transaction is whole first; its rows have lower positions, and still it waits for the first."""
    stage = Stage()
    assert stage.feed(row("8", 1, lsn=1), end("7", 1, 30, {"public.a": 1}), end("8", 2, 40, {"public.a": 1})) == []
    assert stage.level.open == 2
    stage.feed(row("7", 1, lsn=25))
    assert [place[0] for place in stage.places()] == ["7", "8"]


def test_an_end_without_rows_is_settled_at_once() -> None:
    stage = Stage()
    stage.feed(end("7", 1, 30, {}), end("8", 2, 40, {"public.a": 1}), row("8", 1))
    assert (stage.places(), stage.counted.empty) == ([("8", 40, 0, True)], 1)


def test_a_begin_alone_goes_with_the_next_settled_transaction() -> None:
    """MariaDB's DDL has no END. A BEGIN that may still get rows stays, for a restart may cut its transaction."""
    stage = Stage()
    stage.feed(begin("ddl", 1, 10), begin("7", 2, 12), row("7", 1))
    assert stage.held_events == 3
    stage.feed(begin("8", 4, 22), end("7", 3, 20, {"public.a": 1}))
    assert (stage.places(), stage.held_events) == ([("7", 20, 0, True)], 1)
    stage.feed(begin("ddl2", 6, 40), row("8", 1, lsn=25), end("8", 5, 30, {"public.a": 1}))
    assert stage.held_events == 1
    stage.feed(end("9", 7, 50, {}))
    assert (stage.held_events, stage.blobs) == (0, {})


@pytest.mark.parametrize("flaw", [flaw for flaw in FLAWS if flaw])
def test_what_does_not_add_up_waits_and_is_quarantined_with_its_counts(flaw: str) -> None:
    stage = Stage(open_timeout=60)
    bad, good = Transaction(1, ("public.a", "public.a", "public.b"), flaw), Transaction(2, ("public.a",))
    stage.feed(*bad.events(), now=0)
    stage.feed(*good.events(), now=30)
    waits = [] if flaw != "no END" else good.output()
    assert stage.places() == waits
    stage.feed(now=59.9)
    assert (stage.places(), stage.notices) == (waits, [])
    assert stage.state.expires_at(60) == 60
    stage.feed(now=60)
    assert stage.places() == good.output()
    (notice,) = stage.notices
    assert (notice.name, notice.fields["txn_id"]) == ("transaction.quarantined", "701")
    assert all("/" in tables for tables in str(notice.fields["tables"]).split(", "))
    assert stage.counted.quarantined == 1
    assert stage.adds_up()
    assert stage.level.open_rows == 0


def test_a_quarantined_transaction_says_what_was_found_and_expected() -> None:
    stage = Stage(open_timeout=1)
    stage.feed(row("7", 1), end("7", 1, 30, {"public.a": 1, "public.b": 2}))
    stage.feed(now=1)
    fields = stage.notices[0].fields
    assert (fields["reason"], fields["rows"], fields["event_count"]) == ("rows missing", 1, 3)
    assert fields["tables"] == "public.a 1/1, public.b 0/2"


def test_what_comes_of_a_quarantined_transaction_later_is_never_handed_on() -> None:
    stage = Stage(open_timeout=1)
    stage.feed(row("7", 1))
    stage.feed(now=1)
    assert stage.feed(row("7", 2), end("7", 5, 30, {"public.a": 2}), now=2) == []
    assert (stage.counted.late, stage.counted.late_rows, stage.level.open) == (2, 1, 0)
    told = [notice.fields for notice in stage.notices if notice.name == "transaction.late"]
    assert [(fields["txn_id"], fields["events"]) for fields in told] == [("7", 2)]
    assert stage.adds_up()
    assert stage.feed(row("8", 1), end("8", 6, 40, {"public.a": 1}), now=3)


def test_quarantined_and_late_rows_become_whole_units_of_dead_letters() -> None:
    stage = Stage(open_timeout=1, dead_letter_table="letters")
    stage.feed(row("7", 1), row("7", 3), now=0)
    stage.feed(now=1)
    stage.feed(row("7", 2), now=2)
    places = [
        (letter["table"], letter["position"], letter["seq"], letter["transaction_end"]) for letter in stage.letters
    ]
    assert places == [("letters", 1, 0, False), ("letters", 1, 1, True), ("letters", 2, 0, True)]
    content = json.loads(stage.letters[2]["row"])
    assert (content["txn_id"], content["total_order"], content["reason"]) == ("7", 2, "too late")
    assert json.loads(content["content"]) == {"t": "7", "n": 2}


def test_a_later_run_of_a_micro_batch_numbers_dead_letters_as_the_first_run_did() -> None:
    """The ledger leaves out the numbers of the first run, if its commit was the last thing that it did."""
    numbers = []
    for again in (2.5, 9):
        stage = Stage(open_timeout=2, dead_letter_table="letters")
        stage.feed(row("6", 1), now=-5)
        stage.feed(row("7", 2), now=0)  # quarantines 6
        stage.feed(row("8", 1), now=1)
        before = len(stage.letters)
        stage.feed(row("6", 2), row("9", 1), row("7", 1), now=again)
        places = [(json.loads(letter["row"])["txn_id"], letter["position"]) for letter in stage.letters[before:]]
        numbers.append(list(dict.fromkeys(places)))
    assert numbers == [[("6", 2), ("7", 3)], [("6", 2), ("7", 3), ("8", 4)]]


def test_dead_letters_do_not_depend_on_the_order_of_reading() -> None:
    """A lane that reads Kafka again has the topics' messages in another order."""
    numbers = []
    for ids in (("7", "8", "9"), ("9", "7", "8")):
        stage = Stage(open_timeout=2, dead_letter_table="letters")
        stage.feed(*(row(number, 1) for number in ids), now=0)
        stage.feed(now=3)
        stage.feed(*(row(number, 2) for number in ids), now=4)
        numbers.append([(json.loads(letter["row"])["txn_id"], letter["position"]) for letter in stage.letters])
    assert numbers[0] == numbers[1] == [(number, place) for place, number in enumerate("789789", 1)]


def test_an_overdue_transaction_may_stop_the_job_instead() -> None:
    stage = Stage(open_timeout=1, on_open_timeout="fail")
    stage.feed(row("7", 1), end("7", 1, 30, {"public.a": 2}))
    with pytest.raises(SourceTransactionError, match=r"not added up.*event_count=2.*txn_id=7") as failure:
        stage.feed(now=1.5)
    assert '"n"' not in str(failure.value)


def test_a_whole_transaction_that_only_waits_its_turn_is_never_overdue() -> None:
    stage = Stage(open_timeout=10)
    stage.feed(row("8", 1), end("8", 2, 40, {"public.a": 1}), now=0)
    stage.feed(end("9", 3, 50, {"public.a": 1}), now=1)
    stage.feed(row("10", 1), end("10", 4, 60, {"public.a": 1}), now=2)
    assert stage.state.expires_at(10) == 11
    stage.feed(now=11)
    assert [place[0] for place in stage.places()] == ["8", "10"]


def test_repeats_of_a_settled_transaction_are_dropped_in_any_order() -> None:
    stage, settled = Stage(), Transaction(1, ("public.a", "public.b"))
    stage.feed(*settled.events())
    *rows, marker = repeated_later([settled])
    stage.feed(rows[0])
    stage.feed(marker, rows[1])
    assert (stage.counted.repeats, stage.counted.repeated_rows) == (3, 2)
    assert stage.places() == settled.output()
    assert stage.adds_up()


def test_an_old_end_whose_id_is_forgotten_is_known_by_its_position() -> None:
    """And then the rows that come after it are known too."""
    stage = Stage()
    stage.feed(row("3", 1), end("3", 1, 20, {"public.a": 1}), row("7", 1), end("7", 2, 30, {"public.a": 1}))
    stage.header = json.dumps(json.loads(stage.header) | {"settled": []})
    stage.feed(begin("3", 3, 10))
    stage.feed(end("3", 4, 20, {"public.a": 1}))
    assert stage.feed(row("3", 1)) == []
    assert (stage.level.open, stage.counted.repeats, stage.blobs) == (0, 2, {})
    assert (stage.counted.unknown_repeats, len(stage.out)) == (0, 2)


def at(txn: str, sequence: int, lsn: int | None) -> list[Fields]:
    """A transaction with one row."""
    return [row(txn, 1, lsn=lsn or 0), end(txn, sequence, lsn, {"public.a": 1})]


def test_another_transaction_at_a_known_position_is_another_source() -> None:
    stage = Stage()
    stage.feed(*at("7", 1, 30), *at("8", 2, 40))
    for events in (at("9", 3, 40), at("9", 3, 30), [*at("9", 3, 30), *at("10", 4, 50)]):
        with pytest.raises(SourceChanged, match=r"others were there before.*txn_id=9\b.*`job`") as failure:
            stage.feed(*events)
        assert failure.value.context["source"] == "shop"
    assert stage.places() == [("7", 30, 0, True), ("8", 40, 0, True)]


def test_an_end_at_an_old_position_waits_for_its_rows_before_it_is_judged() -> None:
    stage = Stage()
    stage.feed(*at("7", 1, 30), *at("8", 2, 40))
    former, latter = at("9", 3, 20), at("10", 4, 50)
    assert stage.feed(former[1], *latter) == []
    with pytest.raises(SourceChanged, match=r"^1 transaction\(s\) came .*last_position=50, .*position=20, .*upto=20\]"):
        stage.feed(former[0])
    assert stage.places() == [("7", 30, 0, True), ("8", 40, 0, True)]


def test_another_transaction_whose_position_is_that_of_its_rows_is_another_source_too() -> None:
    stage = Stage()
    stage.feed(row("a:1", 1, lsn=77), end("a:1", 1, None, {"public.a": 1}))
    with pytest.raises(SourceChanged, match=r"others were there before.*txn_id=b:1"):
        stage.feed(row("b:1", 1, lsn=77), end("b:1", 2, None, {"public.a": 1}))
    with pytest.raises(SourceChanged, match=r"others were there before.*txn_id=b:3"):
        stage.feed(
            *(event for n in (2, 3) for event in (row(f"b:{n}", 1, lsn=78), end(f"b:{n}", n, None, {"public.a": 1})))
        )


@pytest.mark.parametrize("position", [20, None])
def test_a_lower_transaction_that_was_never_there_stops_the_query(position: int | None) -> None:
    """A PostgreSQL that was restored counts its log from a lower place on; an old END may have no place of its own."""
    stage = Stage()
    stage.feed(*at("7", 1, 30), now=0)
    events = at("3", 3, position)
    events[0]["position"] = 19
    with pytest.raises(SourceChanged, match=r"^1 transaction\(s\) came at positions below .* were not written"):
        stage.feed(*events, *at("8", 4, 40))
    assert stage.places() == [("7", 30, 0, True)]


def test_lower_transactions_are_told_at_once_and_judged_when_newer_ones_come() -> None:
    stage = Stage()
    stage.feed(*(event for number in range(1, 700) for event in at(f"{number}", number, 10 * number)))
    assert stage.feed(*at("other", 900, 1005)) == []
    assert (stage.counted.repeats, stage.counted.unknown_repeats) == (0, 2)
    assert (stage.level.open, stage.level.open_rows) == (1, 1)  # it waits for its proof
    stage.feed()
    assert (stage.level.open, stage.counted.unknown_repeats) == (1, 2)
    (notice,) = stage.notices
    assert notice.name == "source.repeated"
    places = {"partition": "shop", "position": 1005, "upto": 1005}
    assert notice.fields == {**places, "txn_id": "other", "count": 2, "rows": 1}
    assert stage.adds_up()
    with pytest.raises(SourceChanged, match=r"^1 transaction\(s\) came at positions below"):
        stage.feed(*at("700", 901, 7000))


def test_what_waits_for_its_proof_is_dropped_once_it_has_it() -> None:
    stage = Stage()
    transactions = {number: at(f"{number}:1", number, 10 * number) for number in range(1, 700)}
    stage.feed(*(event for events in transactions.values() for event in events))
    stage.header = json.dumps(json.loads(stage.header) | {"settled": []})
    first = next(number for number in range(100, 700) if not _remembers(stage, 10 * number))
    stage.feed(*transactions[first])
    assert (stage.level.open, stage.counted.repeats, stage.counted.unknown_repeats) == (1, 0, 2)
    stage.feed(*(event for number in range(first + 1, 700) for event in transactions[number]))
    assert (stage.level.open, stage.counted.repeats) == (0, 2 * (700 - first))
    assert (len(stage.out), stage.blobs) == (699, {})
    assert stage.adds_up()


def _remembers(stage: Stage, place: int) -> bool:
    entries = np.frombuffer(stage.state.past.histories[""], np.dtype([("n", "<i8"), ("place", "<i8"), ("c", "<u4")]))
    return place in entries["place"]


def test_a_transaction_older_than_all_that_were_read_stops_the_query_at_once() -> None:
    """Nothing later would prove it; a restored source may need days to come to new positions."""
    stage = Stage()
    stage.feed(*at("7", 1, 30))
    with pytest.raises(SourceChanged, match=r"^1 transaction\(s\) came at positions below"):
        stage.feed(*at("3", 3, 20))
    assert stage.feed(*at("3", 3, 20), *at("7", 4, 30)) == []
    assert (stage.counted.repeats, stage.counted.unknown_repeats) == (4, 0)


def test_a_long_way_back_is_proved_on_the_way() -> None:
    stage = Stage()
    transactions = [at(f"{number}:1", number, 10 * number) for number in range(1, 400)]
    for start in range(0, len(transactions), 100):
        stage.feed(*(event for events in transactions[start : start + 100] for event in events))
    forgotten = json.loads(stage.header) | {"settled": []}
    stage.header = json.dumps(forgotten)
    for start in range(5, 399, 50):
        again = [event | {"sequence": 900 + start} for events in transactions[start : start + 50] for event in events]
        stage.feed(*(event if event.get("status") else {**event, "sequence": None} for event in again))
    stage.feed(*at("401:1", 2000, 5000))
    assert (stage.counted.released, stage.level.open) == (400, 0)
    assert len(stage.out) == 400


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_long_way_back_may_begin_behind_the_newest_ones(forgotten: bool) -> None:
    """A connector that is killed has sent the newest transactions, and sends old ones again before they are read."""
    stage = Stage()
    transactions = {number: by_gtid("0-1", number, number, 10 * number) for number in range(1, 700)}

    def again(numbers: range) -> list[Fields]:
        events = [event for number in numbers for event in transactions[number]]
        return [event | {"sequence": 900 + event["sequence"]} if event.get("status") else event for event in events]

    stage.feed(*(event for number in range(1, 600) for event in transactions[number]))
    if forgotten:
        stage.header = json.dumps(json.loads(stage.header) | {"settled": []})
    newest = (event for number in range(600, 700) for event in transactions[number])
    stage.feed(*newest, *again(range(101, 104)))
    stage.feed(*again(range(104, 700)), *by_gtid("0-1", 700, 3000, 7000))
    assert (stage.counted.released, len(stage.out)) == (700, 700)


def test_a_known_id_with_rows_at_another_position_stops_the_query() -> None:
    stage = Stage()
    stage.feed(*at("7", 1, 30), end("5", 2, 35, {}), now=0)
    stage.feed(end("5", 3, 35, {}))  # an empty transaction has no position of its own
    assert stage.notices == []
    for place in (50, 25):
        with pytest.raises(SourceChanged, match=rf"has the id of one that was written.*position={place}.*txn_id=7"):
            stage.feed(at("7", 4, place)[1])  # whose rows are still to come


UUID, OTHER = "5a1f0c3e-0000-4000-8000-00000000000a", "5a1f0c3e-0000-4000-8000-00000000000b"


def by_gtid(server: str, number: int, sequence: int, place: int, rows: int = 1) -> list[Fields]:
    """A transaction of MySQL; its END has no place."""
    txn = f"{server}:{number}" if "-4000-" in server else f"{server}-{number}"
    changes = [row(txn, order + 1, lsn=place + order) for order in range(rows)]
    return [*changes, end(txn, sequence, None, {"public.a": rows} if rows else {})]


@pytest.mark.parametrize("primaries", [(UUID, OTHER), (UUID, UUID), ("0-1", "0-2"), (UUID + ":tag", OTHER + ":tag")])
def test_a_primary_that_takes_over_with_lower_files_goes_on_in_order(primaries: tuple[str, str]) -> None:
    """And what it sends again of the former one's transactions, at places of its own, are repeats."""
    stage, (old, new) = Stage(), primaries
    stage.feed(*by_gtid(old, 13, 1, 5000), *by_gtid(old, 14, 2, 5010, rows=2), *by_gtid(old, 15, 3, 5020))
    following = 1 if new != old else 16
    stage.feed(*by_gtid(old, 15, 4, 90), *by_gtid(new, following, 5, 100), *by_gtid(new, following + 1, 6, 110))
    stage.feed(*by_gtid(old, 14, 7, 80, rows=2), *by_gtid(new, following + 2, 8, 120), *by_gtid(new, following, 9, 100))
    names = [place[0].rsplit(":", 1)[-1].rsplit("-", 1)[-1] for place in stage.places()]
    assert names == ["13", "14", "14", "15", str(following), str(following + 1), str(following + 2)]
    positions = [place[1] for place in stage.places()]
    assert positions == [5000, 5011, 5011, 5020, 5021, 5031, 5041]
    assert (stage.counted.unknown_repeats, stage.level.open, stage.notices) == (0, 0, [])
    assert stage.adds_up()


def failed_over(numbers: range) -> Stage:
    """A source whose primary UUID committed `numbers`, from position 5000 on, and OTHER took over in a lower file."""
    stage = Stage()
    stage.feed(*(event for number in numbers for event in by_gtid(UUID, number, number, 5000 + 10 * number)))
    stage.feed(*by_gtid(OTHER, 1, 10_000, 100))
    return stage


@pytest.mark.parametrize("position", [90, 110, 5000])
def test_a_gtid_below_all_that_were_seen_is_never_judged_by_a_position_of_another_log(position: int) -> None:
    stage = failed_over(range(13, 14))
    with pytest.raises(SourceChanged, match=rf"^1 transaction\(s\) came at GTIDs of {UUID}.*position=12\b"):
        stage.feed(*by_gtid(UUID, 12, 10_001, position))
    assert len(stage.out) == 2
    stage.feed(*by_gtid(UUID, 12, 10_001, position), *by_gtid(UUID, 13, 10_002, position + 5))
    assert (len(stage.out), stage.counted.repeats, stage.counted.unknown_repeats) == (2, 4, 0)


def test_without_a_failover_a_gtid_below_all_that_were_seen_is_new_behind_them_and_not_in_front() -> None:
    """A replica with several threads commits out of order."""
    stage = Stage()
    stage.feed(*by_gtid(UUID, 13, 1, 5000), *by_gtid(UUID, 12, 2, 5010))
    assert len(stage.out) == 2
    with pytest.raises(SourceChanged):
        stage.feed(*by_gtid(UUID, 11, 3, 100))


@pytest.mark.parametrize("settled", [True, False])
def test_a_gtid_that_comes_again_is_a_repeat_wherever_it_stands_if_its_content_is_the_same(
    settled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gap of DDL after each transaction: most of the ranges have become one."""
    monkeypatch.setattr(gtids, "MOST_RANGES", 20)
    stage = failed_over(range(1, 301, 2))
    if not settled:
        stage.header = json.dumps(json.loads(stage.header) | {"settled": []})
    before, sequence = len(stage.out), 20_000
    for numbers in (range(1, 9, 2), range(101, 301, 2)):
        again = (by_gtid(UUID, number, sequence + number, 9_000_000 + number) for number in numbers)
        stage.feed(*(event for events in again for event in events))
    assert (len(stage.out), stage.level.open) == (before, 0)
    stage.feed(*by_gtid(OTHER, 2, 40_000, 120))
    assert len(stage.out) == before + 1
    assert stage.adds_up()


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("place", [100, 5130, 9_000])
def test_the_gtid_of_a_transaction_with_other_content_is_another_source(place: int, settled: bool) -> None:
    """RESET MASTER, or a server that was restored and numbers other transactions alike."""
    stage = failed_over(range(13, 16))
    if not settled:
        stage.header = json.dumps(json.loads(stage.header) | {"settled": []})
    changed = [event | {"row": '{"n": 77}'} if "row" in event else event for event in by_gtid(UUID, 13, 10_001, place)]
    with pytest.raises(SourceChanged, match=rf"others were there before.*position=13\b.*txn_id={UUID}:13"):
        stage.feed(*changed)
    assert len(stage.out) == 4


def test_rows_of_a_known_id_wait_for_their_end_and_are_judged_with_it() -> None:
    stage = failed_over(range(13, 16))
    *rows, marker = by_gtid(UUID, 15, 10_001, 5150)
    stage.feed(*rows)
    assert (stage.level.open, stage.level.open_rows, stage.counted.repeats) == (0, len(rows), 0)
    stage.feed(marker, *by_gtid(OTHER, 2, 10_002, 110))
    assert (stage.notices, stage.counted.repeats, stage.counted.unknown_repeats) == ([], len(rows) + 1, 0)
    assert (len(stage.out), stage.blobs) == (5, {})


def test_a_part_of_a_known_id_holds_nothing_back_and_goes_with_the_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer's second copy of a row, or an END whose rows another delivery has."""
    monkeypatch.setattr(intake, "MAX_REMEMBERED", 3)
    stage = Stage(open_timeout=5)
    stage.feed(*at("7", 1, 30), *at("8", 2, 40))
    stage.feed(at("7", 1, 30)[0], at("8", 3, 40)[1])
    for number in (9, 10, 11):
        assert (stage.level.open, stage.level.open_rows, stage.state.oldest) == (0, number < 11, None)
        assert len(stage.feed(*at(f"{number}", number, 10 * number), now=10 * number)) == 1
    assert (stage.counted.repeats, stage.counted.unknown_repeats, stage.counted.repeated_rows) == (2, 2, 1)
    told = [(notice.name, notice.fields["txn_id"], notice.fields["rows"]) for notice in stage.notices]
    assert (told, stage.blobs) == ([("source.repeated", "7", 1), ("source.repeated", "8", 0)], {})
    assert stage.adds_up()


def test_rows_of_another_one_with_the_id_of_a_cut_transaction_are_not_dropped_with_its_release() -> None:
    """Of the other one only the second row is read, and its BEGIN, when the cut transaction is released."""
    stage, old, new = Stage(), f"{UUID}:1", [row(f"{UUID}:1", n, lsn=20 + n, row=f'{{"new": {n}}}') for n in (1, 2)]
    cut = [row(old, n, lsn=10 + n) for n in (1, 2)]
    stage.feed(
        *({**event, "timestamp": time} for time, event in enumerate((begin(old, 1, 10), cut[0], begin(old, 2, 10)), 1)),
        *({**event, "timestamp": 4 + n} for n, event in enumerate(cut)),
        {**end(old, 3, None, {"public.a": 2}), "timestamp": 6},
        {**begin(old, 4, 20), "timestamp": 7},
        {**new[1], "timestamp": 9},
    )
    assert [each["row"] for each in stage.out] == [each["row"] for each in cut]
    assert stage.held_events > 0
    with pytest.raises(SourceChanged, match="others were there before"):
        stage.feed({**new[0], "timestamp": 8}, {**end(old, 5, None, {"public.a": 2}), "timestamp": 10})


def test_the_end_of_a_further_delivery_waits_for_its_rows_and_is_a_repeat_then() -> None:
    stage, txn = Stage(), f"{UUID}:1"
    rows = [row(txn, n, lsn=10 + n) for n in (1, 2)]
    deliveries = [
        {**event, "timestamp": time}
        for time, event in enumerate(
            (
                *(begin(txn, 1, 10), *rows, end(txn, 2, None, {"public.a": 2})),
                *(begin(txn, 3, 10), *rows, end(txn, 4, None, {"public.a": 2})),
            ),
            1,
        )
    ]
    stage.feed(*(event for number, event in enumerate(deliveries) if number != 6))
    assert len(stage.out) == 2
    stage.feed(deliveries[6])
    assert (len(stage.out), stage.held_events, stage.counted.unknown_repeats) == (2, 0, 0)
    assert stage.adds_up()


def test_a_transaction_that_a_restart_cut_is_a_repeat_by_its_last_row() -> None:
    stage = Stage()
    stage.feed(*by_gtid(UUID, 13, 1, 5000), *by_gtid(UUID, 14, 2, 5010, rows=3))
    last = by_gtid(UUID, 14, 2, 5010, rows=3)[2] | {"total_order": 1}
    cut = [begin(f"{UUID}:14", 3, 5012), last, end(f"{UUID}:14", 4, None, {"public.a": 1})]
    stage.feed(*cut, *by_gtid(UUID, 15, 5, 5020))
    assert (len(stage.out), stage.counted.unknown_repeats, stage.counted.repeats) == (5, 0, 2)


@pytest.mark.parametrize(("txn", "place"), [("8", 40), ("8", 35), ("7", 25), ("9", 40)])
def test_the_id_of_a_transaction_proves_nothing_at_another_place_or_with_other_content(txn: str, place: int) -> None:
    """PostgreSQL counts its transactions on from an old number after it was restored."""
    stage = Stage()
    stage.feed(*at("6", 0, 20), *at("7", 1, 30), *at("8", 2, 40))
    changed = [event | {"row": '{"n": 77}'} if "row" in event else event for event in at(txn, 3, place)]
    with pytest.raises(SourceChanged, match=r"others were there before|has the id of one that was written"):
        stage.feed(*changed)


@pytest.mark.parametrize(("sources", "named"), [((), True), (None, False)])
def test_a_stage_names_no_setting_that_it_lacks(sources: tuple[str, ...] | None, named: bool) -> None:
    stage = Stage(new_sources=sources)
    stage.feed(*at("7", 1, 30), *at("8", 2, 40))
    with pytest.raises(SourceChanged) as caught:
        stage.feed(*(event | {"timestamp": 5_000} for event in at("8", 3, 45)))
    assert ("new_sources" in caught.value.advice, "new_source" in caught.value.context) == (named, named)
    assert named or "another `job` and a new checkpoint" in caught.value.advice


def test_servers_of_a_state_of_an_earlier_release_are_not_known() -> None:
    stage = Stage()
    stage.feed(*by_gtid(UUID, 13, 1, 5000))
    former = json.loads(stage.header)
    del former["past"]
    stage.header = json.dumps(former | {"recent": []})
    stage.feed(*by_gtid(OTHER, 1, 2, 100))
    assert (stage.counted.unknown_repeats, [notice.name for notice in stage.notices]) == (2, ["source.repeated"])
    stage.feed(*by_gtid(UUID, 14, 3, 5010))
    stage.feed(*by_gtid(UUID, 15, 4, 200))  # its server is known by now
    assert [place[1] for place in stage.places()] == [5000, 5010, 5011]


def test_ranges_of_gtids_stay_few() -> None:
    seen = SeenGtids()
    for start in range(0, 6000, 40):
        seen = seen.and_more(pa.array([f"{UUID}:{number}" for number in range(start, start + 40) if number % 3]))
    (ranges,) = seen.numbers.values()
    assert (len(ranges), ranges[-1]) == (MOST_RANGES, (5998, 5999))
    ids = pa.array([f"{UUID}:5998", f"{UUID}:5997", f"{UUID}:1", "571:53195829", "file=a.3,pos=4"])
    assert [mask.tolist() for mask in seen.find(ids)] == [
        [True, False, True, False, False],
        [False, True, False, False, False],
    ]


def test_next_to_the_newest_transactions_old_repeats_are_of_the_same_source() -> None:
    stage = Stage()
    stage.feed(*at("7", 1, 30), *at("8", 2, 40))
    stage.feed(*at("2", 3, 10), *at("7", 4, 30), *at("8", 5, 40), *at("9", 6, 50))
    assert (stage.counted.repeats, stage.counted.unknown_repeats, stage.notices) == (6, 0, [])
    assert [place[0] for place in stage.places()] == ["7", "8", "9"]


def test_a_state_of_an_earlier_release_compares_from_the_next_transactions_on() -> None:
    stage = Stage()
    stage.feed(*at("7", 1, 30))
    former = json.loads(stage.header)
    del former["past"]
    stage.header = json.dumps(former | {"recent": [[30, "7"]]})
    stage.feed(*at("9", 2, 20), *at("10", 3, 40))
    assert (stage.counted.unknown_repeats, stage.places()) == (2, [("7", 30, 0, True), ("10", 40, 0, True)])
    with pytest.raises(SourceChanged):
        stage.feed(*at("11", 4, 40))


def test_a_transaction_without_a_position_of_its_end_takes_that_of_its_rows() -> None:
    stage = Stage()
    stage.feed(row("a:1", 1, lsn=77), end("a:1", 1, None, {"public.a": 1}))
    stage.feed(row("a:1", 1, lsn=77), end("a:1", 2, None, {"public.a": 1}))
    stage.feed(row("a:2", 1, lsn=78), end("a:2", 3, None, {"public.a": 1}))
    assert stage.places() == [("a:1", 77, 0, True), ("a:2", 78, 0, True)]


def test_rows_of_tables_that_are_left_out_count_but_do_not_come_out() -> None:
    stage = Stage()
    stage.feed(row("7", 1), row("7", 2, "public.x", table=None), end("7", 1, 30, {"public.a": 1, "public.x": 1}))
    assert stage.places() == [("7", 30, 0, True)]
    stage.feed(row("8", 1, "public.x", table=None), end("8", 2, 40, {"public.x": 1}))
    assert (stage.counted.skipped_rows, stage.counted.released, len(stage.out)) == (2, 2, 1)
    assert stage.adds_up()


def test_a_snapshot_goes_out_before_the_first_transaction_with_growing_positions() -> None:
    stage = Stage()
    stage.feed(read(1), read(2), row("7", 1, "public.b"))
    stage.feed(read(3))
    stage.feed(end("7", 1, 30, {"public.b": 1}))
    assert stage.places() == [(None, 1, 0, False), (None, 1, 1, True), (None, 2, 0, True), ("7", 30, 0, True)]
    assert stage.adds_up()


def test_rows_of_a_snapshot_go_behind_the_older_changes_of_their_table_and_in_front_of_the_newer_ones() -> None:
    """An incremental snapshot, chunk by chunk between changes; the transaction of another table proves no order."""
    stage = Stage()
    stage.feed(row("6", 1), end("6", 1, 20, {"public.a": 1}))
    stage.feed(row("7", 1), read(1), read(2), row("8", 1), read(3), row("9", 1, "public.b"))
    assert stage.places()[1:] == [], "7 and 8 are open"
    stage.feed(end("7", 2, 30, {"public.a": 1}), end("8", 3, 40, {"public.a": 1}), end("9", 4, 50, {"public.b": 1}))
    assert [(out["txn_id"], out["row"]) for out in stage.out[1:]] == [
        ("7", '{"t": "7", "n": 1}'), ("7", '{"k": 1}'), ("7", '{"k": 2}'),
        ("8", '{"t": "8", "n": 1}'), ("8", '{"k": 3}'), ("9", '{"t": "9", "n": 1}'),
    ]  # fmt: skip
    assert [out["transaction_end"] for out in stage.out[1:]] == [False, False, True, False, True, True]
    assert stage.adds_up()


def test_rows_of_a_snapshot_wait_for_an_older_change_also_of_a_first_run() -> None:
    stage = Stage()
    stage.feed(row("7", 1), read(1), row("8", 1, "public.b"), end("8", 1, 20, {"public.b": 1}))
    assert stage.places() == [("8", 20, 0, True)]
    stage.feed(end("7", 2, 30, {"public.a": 1}))
    assert [out["row"] for out in stage.out[1:]] == ['{"t": "7", "n": 1}', '{"k": 1}']
    assert stage.adds_up()


def test_a_later_run_puts_no_row_of_a_snapshot_into_a_unit_of_the_first_run() -> None:
    """It gives up the transaction that the row waits for; the ledger leaves out the unit, which is written."""
    outputs = []
    for again in (2.0, 9.0):
        stage = Stage(open_timeout=5)
        stage.feed(row("6", 1), end("6", 1, 20, {"public.a": 1}), now=0)
        stage.feed(row("7", 1), read(1), now=1)
        stage.feed(row("8", 1, "public.b"), end("8", 2, 40, {"public.b": 1}), now=again)
        outputs.append([(out["txn_id"], out["row"]) for out in stage.out])
        stage.feed(now=10)
        stage.feed(row("9", 1), end("9", 3, 50, {"public.a": 1}), now=11)
        assert [out["row"] for out in stage.out[2:]] == ['{"k": 1}', '{"t": "9", "n": 1}']
    assert outputs[0] == outputs[1] == [("6", '{"t": "6", "n": 1}'), ("8", '{"t": "8", "n": 1}')]


def test_a_later_snapshot_goes_in_front_of_the_next_transaction() -> None:
    stage = Stage()
    stage.feed(row("7", 1), end("7", 1, 30, {"public.a": 1}))
    assert stage.feed(read(1)) == []
    stage.feed(row("8", 1), end("8", 2, 40, {"public.a": 1}))
    assert stage.places()[1:] == [("8", 40, 0, False), ("8", 40, 1, True)]
    assert stage.out[1]["row"] == '{"k": 1}'
    assert stage.adds_up()


def test_a_long_open_transaction_is_not_written_again_and_blobs_stay_few() -> None:
    stage = Stage()
    stage.feed(row("7", 1))
    first = stage.state.blobs
    stage.feed(row("8", 1), end("8", 1, 30, {"public.a": 1}))
    assert stage.state.blobs == first
    for order in range(2, 3 * MANY_BLOBS):
        stage.feed(row("7", order))
        assert len(stage.blobs) <= MANY_BLOBS + 1
    stage.feed(end("7", 2, 40, {"public.a": 3 * MANY_BLOBS - 1}))
    assert len(stage.out) == 3 * MANY_BLOBS


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (row("7", 1, txn_id=None), "has no transaction"),
        (row("7", 1, total_order=None), "no total_order"),
        (row("7", 1) | {"collection": None}, "does not name its table"),
        (row("7", 1, position=None), "no position"),
        (end("7", 1, 30, {}) | {"txn_id": None}, "marker has no id"),
        (end("7", 1, 30, {}, status="ENDE"), "neither BEGIN nor END"),
        (end("7", 1, 30, {}) | {"sequence": None}, "no sequence"),
    ],
)
def test_an_event_that_cannot_be_placed_is_refused_with_its_place(bad: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as failure:
        Stage().feed(row("6", 1), bad)
    assert "source=shop" in str(failure.value)


def test_wrong_options_are_refused() -> None:
    with pytest.raises(OptionError, match="above zero"):
        VerifiedPolicy(0)
    with pytest.raises(OptionError, match="quarantine, fail"):
        VerifiedPolicy(1, "drop")  # type: ignore[arg-type]


TABLES = st.lists(st.sampled_from(["public.a", "public.b", "public.c"]), min_size=1, max_size=5)


@st.composite
def histories(draw: st.DrawFn, flaws: bool) -> tuple[list[Transaction], list[list[dict[str, Any]]]]:
    """Transactions, and their events in micro-batches: rows anywhere, ENDs anywhere, some events twice.

    Not the END of a transaction with two rows at one place: with the second one it is another transaction of that id.
    """
    kinds = st.sampled_from([None, None, *FLAWS]) if flaws else st.none()
    transactions = [
        Transaction(n, tuple(tables), draw(kinds)) for n, tables in enumerate(draw(st.lists(TABLES, max_size=8)), 1)
    ]
    events = [event for transaction in transactions for event in transaction.events()]
    two_contents = {transaction.txn for transaction in transactions if transaction.flaw == "two at one place"}
    once = [event for event in events if "status" not in event or event["txn_id"] not in two_contents]
    events += draw(st.lists(st.sampled_from(once), max_size=6)) if once else []
    chance = random.Random(draw(st.integers(0, 2**32)))
    chance.shuffle(events)
    markers = iter(sorted((e for e in events if "status" in e), key=lambda e: e["sequence"]))
    events = [next(markers) if "status" in e else e for e in events]  # their topic keeps their order
    cuts = sorted(chance.randrange(len(events) + 1) for _ in range(draw(st.integers(0, 6))))
    return transactions, [events[low:high] for low, high in zip([0, *cuts], [*cuts, len(events)], strict=True)]


@given(histories(flaws=False))
def test_every_transaction_comes_out_once_whole_and_in_commit_order(history: Any) -> None:
    transactions, batches = history
    stage = Stage()
    for batch in batches:
        stage.feed(*batch)
        assert stage.adds_up()
    assert stage.places() == [place for transaction in transactions for place in transaction.output()]
    stage.feed(*repeated_later(transactions))
    assert stage.places() == [place for transaction in transactions for place in transaction.output()]
    assert (stage.level.open, stage.level.open_rows, stage.blobs) == (0, 0, {})
    assert stage.adds_up()


def without(places: list[Any], transactions: list[Transaction]) -> list[Any]:
    """The places that belong to other transactions."""
    return [place for place in places if place[0] not in {transaction.txn for transaction in transactions}]


@given(histories(flaws=True))
def test_flawed_ones_are_quarantined_and_all_others_come_out_in_commit_order(history: Any) -> None:
    transactions, batches = history
    good = [place for transaction in transactions if not transaction.flaw for place in transaction.output()]
    # A row too many that comes when its transaction has added up and gone is a repeat.
    may_go = [transaction for transaction in transactions if transaction.flaw in ("two at one place", "a row too many")]
    stage = Stage(open_timeout=100)
    for now, batch in enumerate(batches):
        stage.feed(*batch, now=now)
        remaining_places = without(stage.places(), may_go)
        assert remaining_places == good[: len(remaining_places)]
        assert not stage.out or stage.out[-1]["transaction_end"]
    stage.feed(now=200)
    assert without(stage.places(), may_go) == good
    for left_out in may_go:
        assert without(
            stage.places(), [transaction for transaction in transactions if transaction is not left_out]
        ) in (
            [],
            left_out.output(),
        )
    flawed = {transaction.txn for transaction in transactions if transaction.flaw}
    assert {notice.fields["txn_id"] for notice in stage.notices} <= flawed
    assert (stage.waiting, stage.level.open) == ([], 0)
    assert stage.adds_up()


def contents(rows: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """(transaction, number of the row) of released rows."""
    return [(row["txn_id"], json.loads(row["row"])["n"]) for row in rows]


def expected(transactions: list[Transaction]) -> list[tuple[str, int]]:
    return [(transaction.txn, n) for transaction in transactions for n in range(1, len(transaction.tables) + 1)]


CUT = Transaction(1, ("public.a", "public.b", "public.a", "public.a"))  # BEGIN, four rows, END: six events


@pytest.mark.parametrize(
    ("runs", "deliveries"),
    [
        ([(0, 6), (3, 6)], "whole, then its last two rows again"),
        ([(0, 6), (5, 6)], "whole, then without a row"),
        ([(0, 4), (0, 6)], "three rows, then whole"),
        ([(0, 1), (0, 6)], "a BEGIN, then whole"),
        ([(0, 4), (3, 6)], "three rows, then from the third on"),
        ([(0, 4), (2, 5), (3, 6)], "three rows, twice more and further"),
    ],
)
def test_a_transaction_that_a_restart_cut_is_joined(runs: list[tuple[int, int]], deliveries: str) -> None:
    """Whichever of its topics comes first, and also when all comes at once."""
    for first in ("markers", "public.a", "public.b", ""):
        connector, stage = Connector([CUT, Transaction(2, ("public.b",))]), Stage()
        for offset, until in runs:
            connector.run(offset, until)
        connector.run(6, 9)
        stage.feed(*(event for topic, event in connector.sent if topic == first))
        assert contents(stage.out) in ([], expected([CUT])), (deliveries, first)
        stage.feed(*(event for topic, event in connector.sent if topic != first))
        assert contents(stage.out) == expected(list(connector.transactions)), (deliveries, first)
        assert (stage.level.open_rows, stage.blobs) == (0, {})
        assert stage.adds_up()


def test_rows_of_an_earlier_delivery_that_may_be_missing_are_waited_for() -> None:
    """The second delivery begins where the first ends: the rows in between may be anywhere, until open_timeout says
    that they are not."""
    connector = Connector([CUT])
    connector.run(0, 3)
    connector.run(3, 6)
    stage = Stage(open_timeout=100)
    stage.feed(*(event for _, event in connector.sent), now=0)
    assert (stage.out, stage.notices) == ([], [])
    stage.feed(now=61)
    stage.feed(now=90)
    (notice,) = stage.notices
    assert (notice.name, notice.fields["reason"]) == ("transaction.waiting", "cut by a restart")
    strict = Stage(open_timeout=100, on_open_timeout="fail")
    strict.feed(*(event for _, event in connector.sent), now=0)
    with pytest.raises(SourceTransactionError, match="no count proves that no row of it is missing"):
        strict.feed(now=100)
    assert strict.out == []
    stage.feed(now=100)
    assert contents(stage.out) == expected([CUT])
    told = stage.notices[1:]
    assert [(notice.name, notice.fields["reason"]) for notice in told] == [("transaction.trusted", "cut by a restart")]
    assert (stage.counted.trusted, stage.counted.released) == (1, 1)
    assert stage.adds_up()


def test_the_rest_of_a_cut_transaction_alone_is_never_released() -> None:
    """Its own END counts it; the rows in front of it have not been read."""
    connector = Connector([CUT])
    connector.run(0, 5)
    rows = len(connector.sent)
    connector.run(3, 6)
    stage = Stage()
    stage.feed(connector.sent[0][1], *(event for _, event in connector.sent[rows:]))
    assert stage.out == []
    stage.feed(*(event for _, event in connector.sent[1:rows]))
    assert contents(stage.out) == expected([CUT])


def test_deliveries_keep_the_order_of_commits() -> None:
    """The second transaction is whole by its first delivery, the first one only by its second."""
    connector, stage = Connector([CUT, Transaction(2, ("public.a",))]), Stage()
    connector.run(0, 9)
    connector.run(0, 6)
    stage.feed(*(event for topic, event in connector.sent if topic != "public.b" or event["timestamp"] > 2000))
    assert contents(stage.out) == expected(list(connector.transactions))


def test_without_timestamps_a_cut_transaction_waits() -> None:
    connector = Connector([CUT])
    connector.run(0, 4)
    connector.run(0, 6)
    stage = Stage(open_timeout=10)
    stage.feed(*(event | {"timestamp": None} for _, event in connector.sent))
    stage.feed(now=10)
    assert stage.out == []
    assert stage.notices[0].fields["reason"] == "cut by a restart"


@st.composite
def restarts(draw: st.DrawFn) -> tuple[Connector, list[list[dict[str, Any]]]]:
    """A connector that crashes anywhere, and its events in micro-batches, each topic in its order."""
    transactions = [
        Transaction(n, tuple(table_names)) for n, table_names in enumerate(draw(st.lists(TABLES, max_size=4)), 1)
    ]
    connector = Connector(transactions, draw(st.booleans()))
    stored = 0
    for _ in range(draw(st.integers(0, 3))):
        sent_count = draw(st.integers(stored, connector.events))
        connector.run(stored, sent_count)
        stored = connector.stored(draw(st.integers(stored, sent_count)))
    connector.run(stored, connector.events)
    waiting = {
        topic: [event for event_topic, event in connector.sent if event_topic == topic] for topic, _ in connector.sent
    }
    batches = []
    while any(waiting.values()):
        counts = {topic: draw(st.integers(0, len(events))) for topic, events in waiting.items()}
        batches.append([event for topic, events in waiting.items() for event in events[: counts[topic]]])
        waiting = {topic: events[counts[topic] :] for topic, events in waiting.items()}
        if len(batches) == 5:
            batches.append([event for events in waiting.values() for event in events])
            break
    return connector, batches


@given(restarts())
def test_restarts_of_the_connector_never_tear_repeat_or_lose_a_transaction(history: Any) -> None:
    connector, batches = history
    stage, all_rows = Stage(open_timeout=10), expected(list(connector.transactions))
    for batch in batches:
        stage.feed(*batch)
        assert contents(stage.out) == all_rows[: len(stage.out)]
        assert not stage.out or stage.out[-1]["transaction_end"]
        assert stage.adds_up()
    stage.feed(now=10)
    assert contents(stage.out) == all_rows
    assert (stage.level.open, stage.counted.quarantined, stage.waiting) == (0, 0, [])
    assert stage.adds_up()
