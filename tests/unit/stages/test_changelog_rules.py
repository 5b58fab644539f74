"""The changelog rules on hand-made rows, and against simple models on many random sequences."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
from hypothesis import given, strategies as st

from starrocks_spark_stages.changelog.rules.conversions import (
    DELETE,
    INSERT,
    UPDATE_AFTER,
    UPDATE_BEFORE,
    ChangeEvent,
    ClaimingRow,
    ClaimingRows,
    ImageEncoder,
    RowChange,
    RowKind,
    TimedRow,
    code_to_kinds,
    decode,
    decode_with_previous,
    encode,
    kinds_to_code,
    needs_materializer,
    net_effect,
    normalize,
    release,
)
from starrocks_spark_stages.changelog.starrocks_ops import RANKS, LastPerKey
from tests.support.changelog_model import live_rows, multiset, retract_changelog, upserted
from tests.support.depth import examples

SEEDS = st.integers(0, 2**32)
PER_SEED = 100  # sequences; with `many`, 12 000 a test in the deep profile
many = examples(120)

ALL_CODES = {kind: kind.name for kind in RowKind}
DEBEZIUM = {"INSERT": "c", "DELETE": "d", "UPDATE_BEFORE, UPDATE_AFTER": "u"}


# --- decode ---


def test_a_record_with_images_becomes_its_kinds() -> None:
    assert decode((UPDATE_BEFORE, UPDATE_AFTER), "old", "new") == [
        RowChange(UPDATE_BEFORE, "old"),
        RowChange(UPDATE_AFTER, "new"),
    ]
    assert decode((DELETE,), "old", None) == [RowChange(DELETE, "old")]


def test_an_upsert_is_an_insert_first_and_an_update_later() -> None:
    upsert = (INSERT, UPDATE_BEFORE, UPDATE_AFTER)
    assert decode_with_previous(upsert, "a", None, None) == ([RowChange(INSERT, "a")], "a")
    assert decode_with_previous(upsert, "b", None, "a") == (
        [RowChange(UPDATE_BEFORE, "a"), RowChange(UPDATE_AFTER, "b")],
        "b",
    )
    assert decode_with_previous((INSERT, UPDATE_AFTER), "b", None, "a") == ([RowChange(UPDATE_AFTER, "b")], "b")


def test_an_update_without_a_previous_row_is_an_insert_unless_it_brings_its_own() -> None:
    update = (UPDATE_BEFORE, UPDATE_AFTER)
    assert decode_with_previous(update, "b", None, None).changes == [RowChange(INSERT, "b")]
    assert decode_with_previous(update, "b", "a", None).changes[0] == RowChange(UPDATE_BEFORE, "a")


def test_a_delete_is_handed_on_as_it_came_and_forgets_the_row() -> None:
    assert decode_with_previous((DELETE,), "key only", None, "whole") == ([RowChange(DELETE, "key only")], None)
    assert decode_with_previous((DELETE,), None, "image", "whole") == ([RowChange(DELETE, "image")], None)


@many
@given(SEEDS)
def test_upserts_with_state_are_a_valid_retract_changelog_of_the_same_table(seed: int) -> None:
    random = Random(seed)
    for _ in range(PER_SEED):
        row: Any = None
        previous, changes = None, []
        for _ in range(random.randrange(12)):
            row = None if row is not None and random.random() < 0.3 else random.randrange(5)
            kinds = (DELETE,) if row is None else (INSERT, UPDATE_BEFORE, UPDATE_AFTER)
            new_changes, previous = decode_with_previous(kinds, previous if row is None else row, None, previous)
            changes += new_changes
        expected = {} if row is None else {row: 1}
        assert multiset(changes) == expected
        assert upserted(changes) == row


# --- encode, and the way back ---


def test_kinds_without_a_code_are_dropped() -> None:
    codes = kinds_to_code(None)
    assert encode(codes, RowChange(UPDATE_BEFORE, "a")) is None
    assert encode(codes, RowChange(DELETE, "a")) == ChangeEvent("DELETE", "a", None)
    assert encode(codes, RowChange(INSERT, "a")) == ChangeEvent("INSERT", None, "a")


def test_a_waiting_before_image_that_was_lost_makes_an_insert() -> None:
    encoder = ImageEncoder(kinds_to_code(DEBEZIUM), paired=True)
    event, previous = encoder.encode(RowChange(UPDATE_BEFORE, "a"), None)
    assert (event, previous) == (None, "a")
    assert encoder.encode(RowChange(UPDATE_AFTER, "b"), previous) == (ChangeEvent("u", "a", "b"), "b")
    assert encoder.encode(RowChange(UPDATE_AFTER, "b"), None) == (ChangeEvent("c", None, "b"), "b")


def test_a_delete_by_key_shows_the_row_that_was_there() -> None:
    encoder = ImageEncoder(kinds_to_code(DEBEZIUM), paired=True)
    assert encoder.encode(RowChange(DELETE, "key only"), "whole") == (ChangeEvent("d", "whole", None), None)
    assert encoder.encode(RowChange(DELETE, "key only"), None) == (ChangeEvent("d", "key only", None), None)


def test_without_a_key_only_a_waiting_before_image_is_used() -> None:
    encoder = ImageEncoder(kinds_to_code(DEBEZIUM), paired=True, keyed=False)
    assert encoder.encode(RowChange(INSERT, "x"), None) == (ChangeEvent("c", None, "x"), None)
    assert encoder.encode(RowChange(DELETE, "x"), "waiting") == (ChangeEvent("d", "x", None), "waiting")
    assert encoder.encode(RowChange(UPDATE_AFTER, "b"), "a") == (ChangeEvent("u", "a", "b"), None)


@many
@given(SEEDS)
def test_from_changelog_undoes_to_changelog(seed: int) -> None:
    """Flat with all kinds mapped, and with images and paired updates: the changelog comes back as it was."""
    random = Random(seed)
    kinds, paired_kinds = code_to_kinds(None), {"c": (INSERT,), "d": (DELETE,), "u": (UPDATE_BEFORE, UPDATE_AFTER)}
    for _ in range(PER_SEED):
        changes = retract_changelog(random, random.randrange(12))
        flat = [encode(ALL_CODES, change) for change in changes]
        assert [
            back for event in flat if event for back in decode(kinds[event.code], event.before, event.after)
        ] == changes
        encoder, previous, events = ImageEncoder(kinds_to_code(DEBEZIUM), paired=True), None, []
        for change in changes:
            event, previous = encoder.encode(change, previous)
            events += [event] if event else []
        assert [
            back for event in events for back in decode(paired_kinds[event.code], event.before, event.after)
        ] == changes


@many
@given(SEEDS)
def test_to_changelog_undoes_from_changelog(seed: int) -> None:
    random = Random(seed)
    kinds = code_to_kinds(None)
    for _ in range(PER_SEED):
        events = [(change.kind.name, change.row) for change in retract_changelog(random, random.randrange(12))]
        changes = [change for code, row in events for change in decode(kinds[code], row, row)]
        back = [encode(ALL_CODES, change) for change in changes]
        assert [(event.code, event.before or event.after) for event in back if event] == events


@many
@given(SEEDS)
def test_before_images_from_state_are_those_of_the_table(seed: int) -> None:
    """Upsert input, without -U: every update shows the row that a reader of the table would have seen."""
    random, codes = Random(seed), {INSERT: "c", UPDATE_AFTER: "u", DELETE: "d"}
    encoder = ImageEncoder(codes, paired=False)
    for _ in range(PER_SEED):
        table = previous = None
        for change in retract_changelog(random, random.randrange(12)):
            if change.kind is UPDATE_BEFORE:
                continue
            event, previous = encoder.encode(change, previous)
            after = change.row if change.kind.adds else None
            assert event == ChangeEvent(codes[change.kind], table, after)
            table = after


# --- normalize ---


@many
@given(SEEDS)
def test_normalized_changes_are_the_real_transitions_of_the_table(seed: int) -> None:
    random = Random(seed)
    for _ in range(PER_SEED):
        table = previous = None
        for _ in range(random.randrange(12)):
            kind, row = random.choice(list(RowKind)), random.randrange(3)
            changes, previous = normalize(RowChange(kind, row), previous, with_update_before=True)
            after = {UPDATE_BEFORE: table, DELETE: None}.get(kind, row)
            expected = {
                (False, False): [],
                (False, True): [RowChange(INSERT, after)],
                (True, False): [RowChange(DELETE, table)],
                (True, True): [RowChange(UPDATE_BEFORE, table), RowChange(UPDATE_AFTER, after)]
                if table != after
                else [],
            }[table is not None, after is not None]
            assert changes == expected
            table = after


# --- materialize ---


def run(changes: list[tuple[str, Any]], key: Any = None) -> tuple[list[tuple[str, Any]], list[ClaimingRow]]:
    rows = ClaimingRows()
    out = []
    for kind, row in changes:
        applied = rows.apply(RowChange(RowKind(kind), row), key(row) if key else None)
        out += [(str(applied.change.kind), applied.change.row)] if applied.change else []
    return out, rows.rows


OLD, NEW = (1, 10, "a1"), (1, 20, "b1")


def test_the_three_arrival_orders_of_the_join_end_alike() -> None:
    orders = [
        [("+I", OLD), ("-U", OLD), ("+U", NEW)],
        [("+U", NEW), ("+I", OLD), ("-U", OLD)],
        [("+I", OLD), ("+U", NEW), ("-U", OLD)],
    ]
    outputs = [run(order)[0] for order in orders]
    assert outputs == [
        [("+I", OLD), ("-D", OLD), ("+I", NEW)],
        [("+I", NEW), ("+U", OLD), ("+U", NEW)],
        [("+I", OLD), ("+U", NEW)],
    ]
    assert {upserted([RowChange(RowKind(kind), row) for kind, row in output]) for output in outputs} == {NEW}


def test_an_upsert_key_replaces_its_row_in_place() -> None:
    output, rows = run([("+I", ("k", 1)), ("+I", ("m", 1)), ("+U", ("k", 2)), ("-D", ("m", 9))], key=lambda row: row[0])
    assert output == [("+I", ("k", 1)), ("+U", ("m", 1)), ("+U", ("k", 2)), ("+U", ("k", 2))]
    assert [row.row for row in rows] == [("k", 2)]


def test_an_unknown_retraction_is_swallowed_and_an_emptied_key_is_deleted_with_the_retracting_row() -> None:
    rows = ClaimingRows()
    assert (rows.apply(RowChange(DELETE, "x")), rows.rows) == ((None, True), [])
    assert run([("+I", ("k", 1)), ("-D", ("k", None))], key=lambda row: row[0])[0][-1] == ("-D", ("k", None))


def test_a_row_replaced_in_place_is_shown_although_another_came_after_it() -> None:
    """As in Flink: the update is put out, its delete is not, because the other row is the last of the list."""
    changes = [("+I", ("k", 1)), ("+I", ("m", 1)), ("+U", ("k", 2)), ("-D", ("k", 2))]
    out, rows = run(changes, key=lambda row: row[0])[:2]
    assert out == [("+I", ("k", 1)), ("+U", ("m", 1)), ("+U", ("k", 2))]
    assert [row.row for row in rows] == [("m", 1)]


def test_updates_without_before_images_leave_rows_that_a_delete_shows_again() -> None:
    assert run([("+I", 1), ("+U", 2), ("-D", 2)])[0] == [("+I", 1), ("+U", 2), ("+U", 1)]


@many
@given(SEEDS)
def test_the_sink_always_shows_the_last_living_row(seed: int) -> None:
    """Without an upsert key. With one, a row replaced in place is shown although others came after it."""
    random = Random(seed)
    for _ in range(PER_SEED):
        with_key = random.random() < 0.5
        history: list[tuple[RowChange, Any]] = []
        rows = ClaimingRows()
        shown_row: Any = None
        for _ in range(random.randrange(10)):
            row = (random.randrange(3), random.randrange(2))
            change = RowChange(random.choice(list(RowKind)), row)
            key = row[0] if with_key else None
            history.append((change, key))
            if random.random() < 0.2:
                rows = ClaimingRows(rows.rows)  # as a micro-batch finds them
            applied = rows.apply(change, key)
            if applied.change is not None:
                assert (shown_row is not None) == (applied.change.kind is not INSERT)
                shown_row = upserted([applied.change], shown_row)
            living = live_rows(history)
            assert [row.row for row in rows.rows] == living
            assert (shown_row is None) == (not living)
            assert with_key or shown_row == (living[-1] if living else None)


@many
@given(SEEDS)
def test_any_order_that_adds_before_it_retracts_ends_with_the_row_that_lives(seed: int) -> None:
    """What the operator is for: one source row's versions, shuffled as parallel tasks may shuffle them."""
    random = Random(seed)
    for _ in range(PER_SEED):
        versions, deleted = random.randrange(1, 6), random.random() < 0.3
        waiting = [("+U", version) for version in range(versions)]
        retractable = versions - (0 if deleted else 1)
        arrivals = []
        while waiting:
            event = waiting.pop(random.randrange(len(waiting)))
            arrivals.append(event)
            if event[0] == "+U" and event[1] < retractable:
                waiting.append(("-U", event[1]))
        output, rows = run(arrivals)
        expected: Any = None if deleted else versions - 1
        assert upserted([RowChange(RowKind(kind), row) for kind, row in output]) == expected
        assert len(rows) == (0 if deleted else 1)


def test_when_the_materializer_is_needed() -> None:
    assert needs_materializer("auto", ("a", "b"), None)
    assert needs_materializer("auto", ("a",), ("b",))
    assert not needs_materializer("auto", ("a", "b"), ("b", "a"))
    assert not needs_materializer("none", ("a",), None)
    assert needs_materializer("force", ("a",), ("a",))


# --- order, net effect, last change ---


def test_a_row_at_the_watermark_is_late_and_a_held_one_leaves() -> None:
    held_rows = [TimedRow(10, (1,), "a"), TimedRow(11, (0,), "b")]
    release_step = release(held_rows, [TimedRow(10, (0,), "late"), TimedRow(12, (), "c")], 10)
    assert [row.row for row in release_step.rows] == ["a"]
    assert [row.row for row in release_step.held] == ["b", "c"]
    assert release_step.late == 1
    assert release([], [TimedRow(0, (), "x")], None) == ([], [TimedRow(0, (), "x")], 0)


@many
@given(SEEDS)
def test_timely_rows_all_leave_sorted_and_late_ones_are_counted(seed: int) -> None:
    random = Random(seed)
    for _ in range(PER_SEED):
        watermark: int | None = None
        held_rows: list[TimedRow] = []
        out: list[TimedRow] = []
        late = sent_count = 0
        for _ in range(random.randrange(1, 6)):
            arrivals = [
                TimedRow(random.randrange(20), (random.randrange(3),), object()) for _ in range(random.randrange(5))
            ]
            sent_count += len(arrivals)
            release_step = release(held_rows, arrivals, watermark)
            held_rows, late, out = release_step.held, late + release_step.late, out + release_step.rows
            assert all(watermark is not None and row.time <= watermark for row in release_step.rows)
            watermark = max(watermark or 0, random.randrange(25))
        last = release(held_rows, [], 100)
        out += last.rows
        assert [row[:2] for row in out] == sorted(row[:2] for row in out)
        assert len(out) + late == sent_count
        assert last.held == []


def test_net_effects() -> None:
    a, b, c = "a", "b", "c"
    insert, update = RowChange(INSERT, a), [RowChange(UPDATE_BEFORE, a), RowChange(UPDATE_AFTER, b)]
    more = [RowChange(UPDATE_BEFORE, b), RowChange(UPDATE_AFTER, c)]
    assert net_effect([insert, *update, *more], full_deletes=True) == [RowChange(INSERT, c)]
    assert net_effect([*update, *more], full_deletes=True) == [RowChange(UPDATE_BEFORE, a), RowChange(UPDATE_AFTER, c)]
    assert net_effect([*update, RowChange(DELETE, b)], full_deletes=True) == [RowChange(DELETE, a)]
    assert net_effect([insert, RowChange(DELETE, a)], full_deletes=True) == []
    replaced = [RowChange(DELETE, a), RowChange(INSERT, b)]
    assert net_effect(replaced, full_deletes=True) == update
    assert net_effect(replaced, full_deletes=False) == [RowChange(UPDATE_AFTER, b)]
    assert net_effect(update[:1], full_deletes=True) == update[:1]


@many
@given(SEEDS)
def test_a_net_effect_does_what_all_changes_do_in_at_most_two(seed: int) -> None:
    random = Random(seed)
    for _ in range(PER_SEED):
        whole = retract_changelog(random, random.randrange(1, 14))
        start = random.randrange(len(whole))
        if start and whole[start - 1].kind is UPDATE_BEFORE:
            start -= 1
        window = whole[start:]
        net = net_effect(window, full_deletes=True)
        assert len(net) <= 2
        assert multiset([*whole[:start], *net]) == multiset(whole)
        assert upserted(net, upserted(whole[:start])) == upserted(whole)


LAST = LastPerKey(["place", "rank"], [])
SHAPE = pa.schema(
    {"__key": pa.string(), "place": pa.int64(), "rank": pa.int64(), "adds": pa.bool_(), "to": pa.list_(pa.int64())}
)


@many
@given(SEEDS)
def test_last_changes_in_any_order_make_the_table_of_a_serial_replay(seed: int) -> None:
    """Three keys with key moves; the two halves of an update share a sequence; the changes arrive shuffled."""
    random = Random(seed)
    for _ in range(PER_SEED):
        table: dict[int, int] = {}
        changes: list[tuple[RowChange, int]] = []
        for sequence in range(random.randrange(12)):
            key, value = random.randrange(3), random.randrange(100)
            if key in table and random.random() < 0.3:
                changes.append((RowChange(DELETE, (key, table.pop(key))), sequence))
            elif key in table:
                target = random.choice([key] + [free for free in range(3) if free not in table])
                changes.append((RowChange(UPDATE_BEFORE, (key, table.pop(key))), sequence))
                changes.append((RowChange(UPDATE_AFTER, (target, value)), sequence))
                table[target] = value
            else:
                changes.append((RowChange(INSERT, (key, value)), sequence))
                table[key] = value
        random.shuffle(changes)
        listed = [
            {
                "__key": str(change.row[0]),
                "place": at,
                "rank": RANKS[change.kind],
                "adds": change.kind.adds,
                "to": change.row,
            }
            for change, at in changes
        ]
        last = LAST.last_rows(pa.Table.from_pylist(listed, SHAPE)).to_pylist()
        assert {change["to"][0]: change["to"][1] for change in last if change["adds"]} == table
