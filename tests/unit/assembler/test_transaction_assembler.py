from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink.assembler.rules import model
from starrocks_txn_sink.assembler.rules.model import Policy
from starrocks_txn_sink.errors import InputError, OptionError, SourceTransactionError
from tests.support.assembler_bench import Bench
from tests.support.assembler_histories import histories, script
from tests.support.assembler_model import Ev, Model, table
from tests.support.depth import scaled


def fed(*batches: list[Ev], policy: Policy | None = None) -> Bench:
    bench = Bench(policy)
    for batch in batches:
        bench.feed(table(batch))
    return bench


def places(bench: Bench) -> list[tuple[int, int, bool, int]]:
    return [(r["position"], r["seq"], r["transaction_end"], r["source_ts"] // 10) for r in bench.out]


def agree(batches: list[list[Ev]], policy: Policy) -> None:
    model = Model(policy.interleaved, policy.missing_begin)
    bench = Bench(policy)
    for batch in batches:
        model.feed(batch)
        if model.refused:
            with pytest.raises(SourceTransactionError):
                bench.feed(table(batch))
            return
        bench.feed(table(batch))
        assert bench.out == model.out
        adds_up(bench)
    counts = bench.total.as_dict()
    assert {name: n for name, n in counts.items() if n and not name.startswith(("open", "state", "unknown"))} == {
        name: n for name, n in model.counts.items() if n
    }
    live = {key: rows for key, (_, rows) in model.open.items() if rows is not None}
    assert (counts["open"], counts["open_rows"]) == (len(live), sum(map(len, live.values())))


def adds_up(bench: Bench) -> None:
    c = bench.total
    assert c.data == c.rows + c.repeated_rows + c.abandoned_rows + c.dropped_rows + c.open_rows
    assert c.rows == len(bench.out)


@given(histories(interleaved=False, well_formed=True))
def test_any_cut_gives_what_serial_replay_gives(batches: list[list[Ev]]) -> None:
    agree(batches, Policy())


@given(histories(interleaved=True, well_formed=True))
def test_any_cut_of_interleaved_transactions_gives_what_serial_replay_gives(batches: list[list[Ev]]) -> None:
    agree(batches, Policy(interleaved=True))


@given(histories(interleaved=False, well_formed=False), st.sampled_from(["fail", "drop", "accept"]))
def test_ill_formed_histories_follow_the_policy(batches: list[list[Ev]], missing_begin: Any) -> None:
    agree(batches, Policy(missing_begin=missing_begin))


@given(histories(interleaved=True, well_formed=False), st.booleans(), st.sampled_from(["fail", "drop", "accept"]))
def test_ill_formed_interleaved_histories_follow_the_policy(
    batches: list[list[Ev]], interleaved: bool, missing_begin: Any
) -> None:
    agree(batches, Policy(interleaved=interleaved, missing_begin=missing_begin))


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_long_fuzzed_history_loses_nothing_without_a_count(interleaved: bool) -> None:
    """150 000 events (fewer in the quick profile) in random order and cuts, checked against the model at the end."""
    rng = random.Random(7)
    policy = Policy(interleaved=interleaved, missing_begin="drop")
    bench, model = Bench(policy), Model(interleaved, "drop")
    position = 0
    batches = scaled(30)
    for _ in range(batches):
        batch = []
        for _ in range(5_000):
            position += 1
            txn = f"t{rng.randrange(40)}" if interleaved else "t"
            batch.append(Ev(position, rng.choices(("BEGIN", "DATA", "END"), (1, 8, 1))[0], txn))
        batch += rng.choices(batch, k=50)
        rng.shuffle(batch)
        model.feed(batch)
        bench.feed(table(batch))
        adds_up(bench)
    assert bench.out == model.out
    assert bench.total.dropped > 0
    assert bench.total.abandoned > 0
    assert bench.total.repeats == model.counts["repeats"] == 50 * batches


def test_only_whole_transactions_come_out_numbered_and_marked() -> None:
    bench = fed(script("B D D E B D E B D"))
    assert places(bench) == [(4, 0, False, 2), (4, 1, True, 3), (7, 0, True, 6)]
    assert (bench.total.open, bench.total.open_rows) == (1, 1)
    assert bench.total.state_bytes > 0


def test_the_last_row_is_marked_when_the_end_comes_alone() -> None:
    bench = fed(script("B D"), script("D", 3), script("E", 4))
    assert places(bench) == [(4, 0, False, 2), (4, 1, True, 3)]
    assert bench.blobs == {}


def test_rows_of_an_open_transaction_are_written_once() -> None:
    batches = [script("B"), *(script("D D D", 2 + 3 * n) for n in range(50)), script("E", 152)]
    bench = fed(*batches)
    assert len(bench.out) == bench.written == 150
    assert [row["seq"] for row in bench.out] == list(range(150))


def test_large_rests_are_cut_into_blobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "BLOB_BYTES", 200)
    bench = fed(script("B " + "D " * 40))
    assert len(bench.blobs) > 3
    bench.feed(table(script("E", 42)))
    assert [row["source_ts"] for row in bench.out] == [10 * n for n in range(2, 42)]


def test_ends_decide_the_order_of_interleaved_transactions() -> None:
    bench = fed(script("Ba Bb Da Db Eb Da Ea"), policy=Policy(interleaved=True))
    assert [(r["txn_id"], r["position"]) for r in bench.out] == [("b", 5), ("a", 7), ("a", 7)]


def test_an_interleaved_begin_abandons_only_its_own_transaction() -> None:
    bench = fed(script("Ba Bb Da Db"), script("Ba Da Ea Eb", 5), policy=Policy(interleaved=True))
    assert places(bench) == [(7, 0, True, 6), (8, 0, True, 4)]
    assert (bench.total.abandoned, bench.total.abandoned_rows) == (1, 1)


def test_a_begin_abandons_what_was_open_and_says_so_once() -> None:
    bench = fed(script("B D B D B D E"))
    assert places(bench) == [(7, 0, True, 6)]
    assert (bench.total.abandoned, bench.total.abandoned_rows) == (2, 2)
    (notice,) = bench.notices
    assert notice.name == "transaction.abandoned"
    assert notice.fields == {"partition": "p0", "position": 1, "txn_id": "t", "count": 2, "rows": 2}


def test_an_end_without_rows_emits_nothing() -> None:
    bench = fed(script("B E B"), script("E", 4))
    assert (bench.out, bench.total.empty, bench.total.open) == ([], 2, 0)


def test_a_rewound_source_is_repeated_not_released_twice() -> None:
    bench = fed(script("B D D E"), script("B D D E"), script("D E B D E", 3))
    assert places(bench) == [(4, 0, False, 2), (4, 1, True, 3), (7, 0, True, 6)]
    assert (bench.total.released, bench.total.repeats, bench.total.repeated_rows) == (2, 6, 3)


def test_repeats_of_an_open_transaction_do_not_double_its_rows() -> None:
    bench = fed(script("B D D"), script("B D D D E"))
    assert [row["source_ts"] for row in bench.out] == [20, 30, 40]
    assert (bench.total.repeats, bench.total.repeated_rows) == (3, 2)


def test_another_transaction_in_between_is_refused_with_the_option_that_helps() -> None:
    with pytest.raises(SourceTransactionError, match=r"position=3.*txn_id=b.*interleaved=True"):
        fed(script("Ba Da Db Ea"))
    with pytest.raises(SourceTransactionError, match=r"position=3.*interleaved=True"):
        fed(script("Ba Da"), script("Eb", 3))


def test_no_transaction_id_belongs_to_what_is_open() -> None:
    bench = fed(
        [Ev(1, "BEGIN", "a"), Ev(2, "DATA", None), Ev(3, "END", None), Ev(4, "BEGIN", None), Ev(5, "DATA", "x")]
    )
    assert [(r["position"], r["txn_id"]) for r in bench.out] == [(3, "a")]


@pytest.mark.parametrize("text", ["D E", "D D", "E", "B D E D B E", "B E E"])
def test_a_missing_begin_fails_and_names_the_place(text: str) -> None:
    with pytest.raises(SourceTransactionError, match=r"partition=p0, position=\d+, txn_id=t.*missing_begin") as failure:
        fed(script(text, 10))
    assert failure.value.code == "source_transaction"


def test_a_missing_begin_is_skipped_to_its_end_over_micro_batches() -> None:
    bench = fed(script("D D"), script("D", 3), script("D E B D E", 4), policy=Policy(missing_begin="drop"))
    assert places(bench) == [(8, 0, True, 7)]
    assert (bench.total.dropped, bench.total.dropped_rows) == (1, 4)
    assert [notice.name for notice in bench.notices] == ["transaction.without_begin"]


def test_a_missing_begin_can_be_accepted() -> None:
    bench = fed(script("D"), script("D E B D E", 2), policy=Policy(missing_begin="accept"))
    assert places(bench) == [(3, 0, False, 1), (3, 1, True, 2), (6, 0, True, 5)]


def test_open_too_long_fails_naming_the_transaction() -> None:
    bench = Bench(Policy(open_timeout=10))
    bench.feed(table(script("B D")), now=100)
    bench.feed(table(script("D", 3)), now=109.9)
    assert bench.state.expires_at(10) == 110
    with pytest.raises(SourceTransactionError, match=r"open_seconds=10, partition=p0, position=1, rows=2, txn_id=t"):
        bench.expire(110)


def test_open_too_long_is_dropped_whole_with_its_later_rows() -> None:
    bench = Bench(Policy(open_timeout=10, on_open_timeout="drop"))
    bench.feed(table(script("B D")), now=100)
    bench.expire(110)
    assert (bench.total.dropped, bench.total.dropped_rows, bench.blobs, bench.total.open) == (1, 1, {}, 0)
    bench.feed(table(script("D D E B D E", 3)), now=111)
    assert places(bench) == [(8, 0, True, 7)]
    assert (bench.total.dropped, bench.total.dropped_rows) == (1, 3)
    adds_up(bench)


def test_rows_that_come_too_late_in_the_same_step_are_not_kept() -> None:
    bench = Bench(Policy(open_timeout=10, on_open_timeout="drop"))
    bench.feed(table(script("B D")), now=100)
    bench.feed(table(script("D", 3)), now=200)
    assert (bench.blobs, bench.out, bench.total.dropped_rows) == ({}, [], 2)
    adds_up(bench)


def test_an_end_in_time_for_the_step_is_released_although_late() -> None:
    bench = Bench(Policy(open_timeout=10))
    bench.feed(table(script("B D")), now=100)
    bench.feed(table(script("E", 3)), now=200)
    assert len(bench.out) == 1


def test_given_up_transactions_are_not_remembered_without_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("starrocks_txn_sink.assembler.rules.assembler.REMEMBERED_DROPS", 3)
    bench = Bench(Policy(interleaved=True, open_timeout=1, on_open_timeout="drop"))
    for n in range(6):
        bench.feed(table([Ev(n, "BEGIN", f"t{n}")]), now=10.0 * n)
    bench.expire(1000)
    assert [transaction.txn_id for transaction in bench.state.open] == ["t3", "t4", "t5"]
    assert bench.total.dropped == 6


@pytest.mark.parametrize(
    ("column", "policy", "change"),
    [
        ("position", Policy(), {"position": None}),
        ("type", Policy(), {"type": None}),
        ("table", Policy(), {"table": None}),
        ("txn_id", Policy(interleaved=True), {"txn_id": None}),
        ("type", Policy(), {"type": "COMMIT-secret"}),
    ],
)
def test_events_that_break_the_contract_are_named_by_place_only(
    column: str, policy: Policy, change: dict[str, Any]
) -> None:
    rows = [event.as_row() for event in script("B D E")]
    rows[1] = {**rows[1], "row": "secret", **change}
    with pytest.raises(InputError) as failure:
        Bench(policy).feed(type(table([])).from_pylist(rows, schema=table([]).schema))
    position = "NULL" if column == "position" else 2
    assert failure.value.context == {"partition": "p0", "position": position, "column": column}
    assert "secret" not in str(failure.value)


def test_two_different_events_at_one_position_are_refused() -> None:
    with pytest.raises(InputError, match="Two different events"):
        fed([Ev(1, "BEGIN"), Ev(2, "DATA", row="1"), Ev(2, "DATA", row="2"), Ev(3, "END")])


def test_markers_need_no_table_and_an_empty_micro_batch_changes_nothing() -> None:
    bench = fed([], script("B D E"), [])
    assert len(bench.out) == 1
    assert bench.state.last_position == 3


def test_several_open_transactions_in_the_checkpoint_need_interleaved() -> None:
    bench = fed(script("Ba Bb"), policy=Policy(interleaved=True))
    other_bench = Bench()
    other_bench.header = bench.header
    with pytest.raises(OptionError, match="interleaved=True"):
        other_bench.feed(table(script("Da", 3)))


def test_a_state_of_another_format_is_refused() -> None:
    with pytest.raises(InputError, match="another format"):
        model.AssemblerState.from_json('{"format": 99}')
