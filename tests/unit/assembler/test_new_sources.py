"""A source that another one follows under its name: the error says from when on, and the declaration goes on there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pyarrow as pa
import pytest

from starrocks_txn_sink import DebeziumAssembly
from starrocks_txn_sink.assembler.rules.model import SOURCE_PARTITION
from starrocks_txn_sink.assembler.rules.spill import Manifest, SpillStorage
from starrocks_txn_sink.assembler.verified.lane import VerifiedLane
from starrocks_txn_sink.assembler.verified.rules import VerifiedPolicy
from starrocks_txn_sink.assembler.verified.sources import begins
from starrocks_txn_sink.errors import OptionError, SourceChanged
from tests.support.memory_directory import MemoryDirectory
from tests.support.verified_source import Fields, begin, end, read, row, table

UUID, OTHER = "5a1f0c3e-0000-4000-8000-00000000000a", "5a1f0c3e-0000-4000-8000-00000000000b"


@dataclass
class Lanes:
    """The lane of one micro-batch after the other; `out` are the released rows: source partition, id and position."""

    declared: tuple[str, ...] = ()
    directory: MemoryDirectory = field(default_factory=MemoryDirectory)
    manifest: bytes = field(default_factory=lambda: Manifest().to_json())
    batch: int = 0
    out: list[tuple[Any, ...]] = field(default_factory=list)

    def feed(self, events: Sequence[Fields]) -> None:
        manifest = Manifest.from_json(self.manifest)
        storage = SpillStorage(self.directory, f"e-{self.batch}", manifest.inline)
        lane = VerifiedLane(VerifiedPolicy(new_sources=self.declared), manifest.partitions, 0.0, storage)
        events_fed = table(events)
        assert not list(lane.feed(events_fed.add_column(0, SOURCE_PARTITION, pa.repeat("shop", events_fed.num_rows))))
        released = [
            (name, row["txn_id"], row["position"])
            for part in lane.finish()
            for name, rows in part.by_partition()
            for row in rows.to_pylist()
        ]
        after = manifest.with_batch(self.batch, "q", lane.carry_over(), storage.new_inline.items())
        storage.close()
        self.manifest, self.batch, self.out = after.to_json(), self.batch + 1, self.out + released

    def feed_until_accepted(self, events: Sequence[Fields]) -> list[str]:
        """Feed, and do what the errors say; the times that they name."""
        said: list[str] = []
        while True:
            error = self._error_of(events)
            if error is None or len(said) == 5:
                return said
            said.append(error.context["new_source"])
            (listed,) = re.findall(r"new_sources = \[(.*?)\]", str(error))
            self.declared = tuple(text.strip(' "') for text in listed.split(","))

    def _error_of(self, events: Sequence[Fields]) -> SourceChanged | None:
        try:
            self.feed(events)
        except SourceChanged as error:
            return error
        return None


def at(txn: str, sequence: int, lsn: int, time: int) -> list[Fields]:
    """A transaction with one row."""
    events = [begin(txn, sequence, lsn), row(txn, 1, lsn=lsn), end(txn, sequence + 1, lsn, {"public.a": 1})]
    return [event | {"timestamp": time + number} for number, event in enumerate(events)]


def many(numbers: Iterable[int], time: int, names: str = "{}", sequence: int = 0) -> list[Fields]:
    """Transactions, 10 places and milliseconds apart."""
    return [
        event
        for place, number in enumerate(numbers)
        for event in at(names.format(number), sequence + 2 * place + 2, 10 * number, time + 10 * place)
    ]


@pytest.mark.parametrize("names", ["{}", "again-{}"])
@pytest.mark.parametrize("tail", [0, 3])
def test_a_database_that_was_set_back_goes_on_once_its_time_is_declared(names: str, tail: int) -> None:
    """Also where its ids are those of before, and the old source has sent more in the same micro-batch."""
    lanes = Lanes()
    lanes.feed(many(range(1, 101), 0))
    old = many(range(101, 101 + tail), 5_000, sequence=300)
    restored = many(range(40, 160), 10_000, "other" + names, sequence=400)
    assert lanes.feed_until_accepted([*old, *restored]) == [begins("shop", 10_000)]
    written = [(name, position // 10) for name, _, position in lanes.out]
    new = begins("shop", 10_000)
    assert written == [*(("shop", n) for n in range(1, 101 + tail)), *((new, n) for n in range(40, 160))]
    lanes.feed([*many(range(160, 170), 20_000, sequence=900), *many(range(157, 160), 30_000, "other" + names, 980)])
    assert [position // 10 for _, _, position in lanes.out[220 + tail :]] == [*range(160, 170)]  # the rest are repeats


@pytest.mark.parametrize(("names", "again"), [("{}", "other-{}"), ("{}", "{}"), (UUID + ":{}", UUID + ":{}")])
def test_what_waits_for_a_proof_is_of_the_new_source_too(names: str, again: str) -> None:
    """Between two places that are remembered, nothing tells it from repeats: it waits, and nothing of it is lost.

    Also where its ids, even its GTIDs, are those of before.
    """
    lanes = Lanes()
    lanes.feed(many(range(1, 2001), 0, names))
    restored = range(1010, 1700)
    times = set[str]()
    for start in range(1010, 1700, 30):
        part = many(range(start, min(start + 30, 1700)), 90_000 + start * 10, again, sequence=10_000 + 2 * start)
        times.update(lanes.feed_until_accepted(list(map(_of_another_source, part))))
    assert times == {begins("shop", 90_000 + 10_100)}
    assert [position // 10 for name, _, position in lanes.out if "@" in name] == [*restored]


def _of_another_source(event: Fields) -> Fields:
    """Its place is another one; where the id is the place, the content is."""
    return event | {"position": event["position"] + 3} | ({"row": '{"n": 77}'} if "row" in event else {})


@pytest.mark.parametrize("names", ["{}", UUID + ":{}"])
def test_two_transactions_of_one_id_in_a_micro_batch_are_of_two_sources(names: str) -> None:
    lanes = Lanes()
    restored = list(map(_of_another_source, many(range(5, 12), 9_000, names, sequence=500)))
    assert lanes.feed_until_accepted([*many(range(1, 11), 0, names), *restored]) == [begins("shop", 9_000)]
    assert [position // 10 for _, _, position in lanes.out] == [*range(1, 11), *range(5, 12)]


def test_rows_of_a_known_id_that_come_before_their_end_are_of_the_new_source_too() -> None:
    lanes = Lanes()
    lanes.feed(many(range(1, 2001), 0))
    former, latter = many([1010], 90_000, sequence=10_000), many([1011, 2100], 90_100, "other-{}", sequence=10_100)
    former = list(map(_of_another_source, former))
    lanes.feed([former[1]])
    assert lanes.feed_until_accepted([former[0], former[2], *latter]) == [begins("shop", 90_000)]
    assert [position // 10 for name, _, position in lanes.out if "@" in name] == [1010, 1011, 2100]


def test_a_known_id_at_another_place_is_of_the_new_source_from_its_begin_on() -> None:
    """Its END tells it, before its rows are there; the BEGIN may have come in an earlier micro-batch."""
    lanes = Lanes()
    lanes.feed(many(range(1, 101), 0))
    first, *others = many([90], 10_000, sequence=400)
    row_of_it, end_of_it = map(_of_another_source, others)
    lanes.feed([first])
    latter = many([110], 11_000, "b-{}", sequence=500)
    assert lanes.feed_until_accepted([end_of_it, *latter]) == [begins("shop", 10_000)]
    lanes.feed([row_of_it])
    assert [position // 10 for _, _, position in lanes.out[100:]] == [90, 110]


def test_a_new_source_that_is_ahead_of_the_old_one_keeps_its_order() -> None:
    """Its topics are read at different speeds: what ends first is whole last."""
    lanes = Lanes()
    lanes.feed(many(range(1, 101), 0))
    former, latter = many([90], 10_000, "b-{}", sequence=400), many([110], 11_000, "b-{}", sequence=500)
    lanes.feed([former[0], former[2], *latter])
    assert len(lanes.out) == 100
    assert lanes.feed_until_accepted([former[1]]) == [begins("shop", 10_000)]
    assert lanes.out[100:] == [(begins("shop", 10_000), f"b-{n}", 10 * n) for n in (90, 110)]


def test_a_late_copy_of_an_old_end_proves_nothing_of_what_comes_behind_it() -> None:
    lanes = Lanes()
    lanes.feed(many([100], 0))
    copy = end("100", 300, 1000, {"public.a": 1}) | {"timestamp": 5_000}
    restored = many([*range(41, 45), 105], 10_000, "b-{}", sequence=400)
    assert lanes.feed_until_accepted([copy, *restored]) == [begins("shop", 10_000)]
    assert [position // 10 for name, _, position in lanes.out if "@" in name] == [*range(41, 45), 105]


def test_the_snapshot_in_front_of_a_new_source_is_its_own() -> None:
    lanes = Lanes()
    lanes.feed(many(range(1, 101), 0))
    lanes.feed([read(7, lsn=400) | {"timestamp": 8_000}, read(8, lsn=400) | {"timestamp": 8_001}])
    assert len(lanes.out) == 100
    assert lanes.feed_until_accepted(many(range(41, 45), 10_000, "other-{}", sequence=400)) == [begins("shop", 8_000)]
    new = begins("shop", 8_000)
    assert [(name, txn) for name, txn, _ in lanes.out[100:]] == [
        *[(new, None)] * 2,
        *((new, f"other-{n}") for n in range(41, 45)),
    ]


def test_a_log_that_was_reset_has_the_same_gtids_and_other_transactions() -> None:
    lanes = Lanes()
    lanes.feed(many(range(1, 51), 0, UUID + ":{}"))
    reset = [
        event | {"row": "{}"} if "row" in event else event for event in many(range(1, 21), 9_000, UUID + ":{}", 500)
    ]
    assert lanes.feed_until_accepted(reset) == [begins("shop", 9_000)]
    assert [position // 10 for _, _, position in lanes.out] == [*range(1, 51), *range(1, 21)]


def test_a_second_new_source_is_declared_beside_the_first() -> None:
    lanes = Lanes()
    lanes.feed(many(range(50, 101), 0))
    lanes.feed_until_accepted(many(range(41, 45), 10_000, "b-{}", sequence=400))
    assert lanes.feed_until_accepted(many(range(30, 35), 20_000, "c-{}", sequence=600)) == [begins("shop", 20_000)]
    assert lanes.declared == (begins("shop", 10_000), begins("shop", 20_000))
    assert [position // 10 for _, _, position in lanes.out] == [*range(50, 101), *range(41, 45), *range(30, 35)]


def test_a_declared_source_splits_the_messages_of_its_name_alone() -> None:
    lanes = Lanes((begins("other", 50),))
    lanes.feed(many(range(1, 11), 0))
    assert {name for name, _, _ in lanes.out} == {"shop"}


def test_a_declared_source_has_a_name_and_a_time_with_a_zone() -> None:
    names = (begins("a@b", 1_764_378_123_456), "shop@1970-01-01T01:00:00+01:00")
    policy = DebeziumAssembly(new_sources=names).policy
    assert policy is not None
    assert policy.new_sources == names
    for wrong in ("yesterday", "shop@2026-11-29T01:00:00", "@1970-01-01T00:00:01Z", 5):
        with pytest.raises(OptionError, match="new_sources"):
            DebeziumAssembly(new_sources=(wrong,))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="known by its offset"):
        DebeziumAssembly(transactions="none", new_sources=("shop@1970-01-01T00:00:01Z",))


def _single(number: int, time: int, sequence: int, content: str = "{}") -> list[Fields]:
    """A transaction with a GTID and one row; its marker has no place."""
    begun, changed, ended = at(f"{UUID}:{number}", sequence, 10 * number, time)
    return [begun | {"position": None}, changed | {"row": content}, ended | {"position": None}]


def test_what_is_left_of_a_written_transaction_does_not_hide_one_that_has_its_gtid() -> None:
    """A copy of the old END counts other rows than those of the new transaction, which is whole by itself."""
    lanes = Lanes()
    lanes.feed([event for number in (1, 2, 3) for event in _single(number, 10 * number, 2 * number, '{"old": 1}')])
    copies = [event | {"total_order": 2} if "row" in event else event for event in _single(1, 10, 20, '{"old": 1}')[1:]]
    lanes.feed([copies[0], copies[1] | {"event_count": 2}])
    reset = [event for number in (1, 2, 4) for event in _single(number, 1_000 + 10 * number, 100 + 2 * number)]
    assert lanes.feed_until_accepted(reset) == [begins("shop", 1_010)]
    assert [position // 10 for name, _, position in lanes.out if "@" in name] == [1, 2, 4]


@pytest.mark.parametrize("together", [True, False])
def test_what_comes_behind_a_gtid_that_is_not_judged_yet_waits(together: bool) -> None:
    """Its rows come late; a transaction behind it may be of the same new source, and new by its own GTID."""
    lanes = Lanes()
    old = [event for number in (1, 2) for event in _single(number, 10 * number, 2 * number, '{"old": 1}')]
    late, behind = _single(2, 1_000, 100), _single(3, 1_010, 102)
    if not together:
        lanes.feed(old)
    lanes.feed([*(old if together else []), late[0], late[2], *behind])
    assert [position // 10 for _, _, position in lanes.out] == [1, 2]
    assert lanes.feed_until_accepted([late[1]]) == [begins("shop", 1_000)]
    assert [position // 10 for name, _, position in lanes.out if "@" in name] == [2, 3]


def test_rows_of_a_repeat_whose_begin_is_not_read_do_not_go_with_the_release() -> None:
    """They are needed to judge the repeat, which holds back what comes behind it until then."""
    lanes = Lanes()
    again = _single(1, 1_000, 100)
    lanes.feed([*_single(1, 10, 2), again[1]])
    lanes.feed([again[0], again[2], *_single(2, 1_010, 102)])
    assert [position // 10 for _, _, position in lanes.out] == [1, 2]


def test_the_rest_of_a_written_transaction_is_judged_by_itself() -> None:
    """Two restarts: the first delivery has no END, and the second one counts its own row alone."""
    lanes = Lanes()
    begun, changed, ended = _single(1, 10, 2)
    more = row(f"{UUID}:1", 2, lsn=11, row='{"n": 2}')
    lanes.feed([begun, changed, more | {"timestamp": 11}, ended | {"event_count": 2, "timestamp": 12} | _counts(2)])
    cut, rest = _single(1, 1_000, 100), _single(1, 1_010, 102, '{"n": 2}')
    lanes.feed([*cut[:2], rest[0], rest[1] | {"position": 11}, rest[2], *_single(2, 1_020, 104)])
    assert [position // 10 for _, _, position in lanes.out][-1] == 2


def _counts(rows: int) -> Fields:
    return {"data_collections": [{"data_collection": "public.a", "event_count": rows}]}


def _cut(txn: str, time: int, sequence: int, lsn: int, between: Sequence[Fields] = ()) -> tuple[list[Fields], ...]:
    """The markers and the rows of a transaction of two rows; the connector was killed, and sends the last one again.

    It sends others `between` both deliveries.
    """
    former, latter = at(txn, sequence, lsn, time), at(txn, sequence + 50, lsn, time + 50)
    rows = [row(txn, number, lsn=lsn + number, row=f'{{"n": {number}}}', timestamp=time + number) for number in (1, 2)]
    markers = [former[0], *(event for event in between if "status" in event), latter[0], latter[2]]
    rest = rows[1] | {"total_order": 1, "timestamp": time + 51}
    return markers, [*rows, *(event for event in between if "row" in event), rest]


@pytest.mark.parametrize("old_first", [True, False])
@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0)], ids=["one table", "two tables"])
@pytest.mark.parametrize(("markers", "rows"), [*product(range(4), range(4))])
def test_a_new_source_that_was_cut_has_all_of_its_rows_however_far_its_topics_are_read(
    markers: int, rows: int, order: Sequence[int], old_first: bool
) -> None:
    """The id was another transaction's, whose release must not take a BEGIN with it whose rows are not read yet."""
    lanes, old = Lanes(), many([1], 0)
    of_markers, of_rows = _cut("1", 1_000, 100, 20)
    of_rows = [of_rows[number] for number in order]
    if old_first:
        lanes.feed(old)
    said = lanes.feed_until_accepted([*(() if old_first else old), *of_markers[:markers], *of_rows[:rows]])
    said += lanes.feed_until_accepted([*of_markers[markers:], *of_rows[rows:], *many([3], 2_000, "b-{}", 200)])
    new = begins("shop", 1_000)
    assert said == [new]
    assert lanes.out == [("shop", "1", 10), *[(new, "1", 22)] * 2, (new, "b-3", 30)]


def test_the_time_is_that_of_the_first_transaction_of_the_new_source_though_its_rows_come_last() -> None:
    lanes, again = Lanes(), many([1, 2, 4], 1_000, sequence=100)
    of_another = list(map(_of_another_source, again))
    lanes.feed([*many([1, 2, 3], 0), *(event for event in of_another if event is not of_another[1])])
    assert lanes.feed_until_accepted([of_another[1]]) == [begins("shop", 1_000)]
    assert [position // 10 for name, _, position in lanes.out if "@" in name] == [1, 2, 4]


def test_a_row_that_is_read_before_its_begin_does_not_make_a_repeat_another_source() -> None:
    lanes, old = Lanes(), many([1, 2], 0)
    begun, late_row, ended = many([2], 100, sequence=50)
    restored = list(map(_of_another_source, many([2, 3], 1_000, sequence=100)))
    lanes.feed([*old, begun, ended, restored[1]])
    assert lanes.feed_until_accepted([late_row, restored[0], *restored[2:]]) == [begins("shop", 1_000)]
    assert [position // 10 for name, _, position in lanes.out if "@" in name] == [2, 3]


def _twice(number: int, contents: Sequence[str]) -> tuple[list[Fields], list[Fields]]:
    """A transaction with a GTID, whose rows have the `contents`, and all of it once more, a second later."""
    begun, changed, ended = _single(number, 10 * number, 2 * number)
    rows = [changed | {"total_order": at, "row": text} for at, text in enumerate(contents, 1)]
    ended |= {"event_count": len(rows)} | (_counts(len(rows)) if rows else {"data_collections": []})
    events = [begun, *rows, ended]
    again = [event | {"timestamp": event["timestamp"] + 1_000} for event in events]
    return events, [event | {"sequence": event["sequence"] + 100} if "status" in event else event for event in again]


def test_markers_that_come_twice_of_a_repeat_that_went_with_its_release_hold_nothing_back() -> None:
    """Its rows are not sent again: it is settled with the transaction, and its END, too."""
    lanes = Lanes()
    events, again = _twice(1, ["{}", "{}"])
    lanes.feed([*events, *again])
    lanes.feed([again[0], again[-1], *_single(2, 2_000, 200)])
    assert [position // 10 for _, _, position in lanes.out] == [1, 1, 2]


def test_markers_that_come_twice_of_a_repeat_hold_nothing_back_while_a_later_one_waits_for_its_proof() -> None:
    lanes = Lanes()
    lanes.feed(many(range(1, 2001), 0, UUID + ":{}"))
    known, unknown = (many([n], 90_000 - 10 * n, UUID + ":{}", sequence=20_000 - 2 * n) for n in (1995, 1010))
    lanes.feed([*known, *unknown])
    back = many(range(1011, 1700), 100_000, UUID + ":{}", sequence=30_000)
    lanes.feed([known[0], known[2], *back, *many([2001], 200_000, UUID + ":{}", sequence=40_000)])
    assert [position // 10 for _, _, position in lanes.out[2000:]] == [2001]


def test_a_repeat_without_rows_does_not_say_of_which_source_what_is_in_front_of_it_is() -> None:
    """Another source gives both ids again; the rows of the first one are read last, and nothing is written sooner."""
    lanes = Lanes()
    (old, new), (empty, empty_again) = _twice(1, ['{"old": 1}']), _twice(2, [])
    new[1] |= {"row": '{"new": 1}'}
    lanes.feed([*old, *empty, new[0], new[2], *empty_again])
    lanes.feed(_single(3, 2_000, 200))
    assert [position // 10 for _, _, position in lanes.out] == [1]
    assert lanes.feed_until_accepted([new[1]]) == [begins("shop", 1_010)]
    assert [position // 10 for name, _, position in lanes.out if "@" in name] == [1, 3]


def test_a_source_that_is_declared_between_two_others_gets_what_waits() -> None:
    """What waits in the one before it is of it, though a later source is known already."""
    lanes = Lanes()
    lanes.feed(many(range(1, 11), 0))
    *begun, ended = many([12], 5_000, "b-{}", sequence=100)
    lanes.feed([ended])
    lanes.declared = (begins("shop", 9_000),)
    lanes.feed(many([20], 9_000, "c-{}", sequence=200))
    assert [name for name, _, _ in lanes.out] == ["shop"] * 10 + [begins("shop", 9_000)]
    lanes.declared = (begins("shop", 4_000), begins("shop", 9_000))
    lanes.feed(begun)
    assert lanes.out[11:] == [(begins("shop", 4_000), "b-12", 120)]


@pytest.mark.parametrize(("markers", "rows"), [*product(range(6), range(5))])
def test_a_begin_waits_for_its_rows_while_a_connector_repeats_what_was_before(markers: int, rows: int) -> None:
    """The rows of what is sent again may be read first: they are of another topic."""
    lanes = Lanes()
    lanes.feed(many([1, 2], 0))
    of_markers, of_rows = _cut("3", 100, 100, 30, between=many([2], 120, sequence=110))
    again = of_rows.pop(2)
    lanes.feed([*of_markers[:markers], *[again, *of_rows][:rows]])
    lanes.feed([*of_markers[markers:], *[again, *of_rows][rows:], *many([4], 200, sequence=200)])
    assert lanes.out[2:] == [*[("shop", "3", 32)] * 2, ("shop", "4", 40)]


@pytest.mark.parametrize("proved_before", [False, True])
def test_a_repeat_that_is_proved_behind_one_of_another_server_that_waits_is_settled(proved_before: bool) -> None:
    """The markers of the former come twice, and hold back nothing: neither what proves the latter, nor what is new."""
    lanes, known = _two_servers(), many([1995], 90_100, UUID + ":{}", sequence=20_100)
    lanes.feed([*many([1010], 90_000, OTHER + ":{}", sequence=20_000), *known])
    back = many(range(1011, 2001), 80_000, OTHER + ":{}", sequence=30_000)
    if proved_before:
        lanes.feed(back)
        back = []
    lanes.feed([known[0], known[2], *back, *many([2001], 200_000, OTHER + ":{}", sequence=40_000)])
    assert [txn_id for _, txn_id, _ in lanes.out[4000:]] == [OTHER + ":2001"]


def test_what_waits_is_not_settled_by_what_is_proved_behind_it() -> None:
    """A copy of a row of the former transaction of its id does not mix with it."""
    lanes = _two_servers()
    waits, *behind = (
        list(map(_of_another_source, many(numbers, 90_000 + offset, OTHER + ":{}", 20_000 + 2 * offset)))
        for numbers, offset in (([1010], 0), (range(1011, 1500), 1_000))
    )
    lanes.feed([*waits, *many([1995], 90_100, UUID + ":{}", sequence=20_100)])
    copy = row(f"{OTHER}:1010", 1, lsn=10_100, timestamp=40_091)
    assert lanes.feed_until_accepted([copy, *behind[0]]) == [begins("shop", 90_000)]
    assert {f"{OTHER}:{n}" for n in range(1010, 1500)} == {txn_id for _, txn_id, _ in lanes.out[4000:]}


def _two_servers() -> Lanes:
    """The log of a primary behind that of another one; both have 2,000 transactions."""
    lanes = Lanes()
    lanes.feed(many(range(1, 2001), 0, UUID + ":{}"))
    lanes.feed(many(range(1, 2001), 30_000, OTHER + ":{}", sequence=10_000))
    return lanes
