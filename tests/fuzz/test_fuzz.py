"""A part of the fuzzing, with another seed than the command's, and the proof that its oracles see."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from starrocks_txn_sink.assembler.rules import model
from starrocks_txn_sink.assembler.rules.assembler import TransactionAssembler
from starrocks_txn_sink.options.redirects import RedirectRules
from starrocks_txn_sink.protocol import label as protocol
from starrocks_txn_sink.protocol.wire import LabelState
from starrocks_txn_sink.sql import connection
from tests.support.depth import scaled

from . import events as event_fuzz, replies as reply_fuzz, wires as wire_fuzz
from .__main__ import main


def test_random_answers_give_typed_errors_and_no_commit_without_proof() -> None:
    answers = scaled(10_000)
    results = reply_fuzz.fuzz_replies(answers, seed=20)
    assert results["reply"] > answers / 5
    assert results["bad_reply"] > answers / 5
    assert min(results["committed"], results["aborted"], results["unknown"]) > answers / 500


def test_random_events_are_released_held_or_counted() -> None:
    figures = event_fuzz.fuzz_events(60_000, seed=20)
    assert min(figures["released"], figures["counted"], figures["refused"]) > 1_000


def test_random_http_replies_give_results_or_typed_errors() -> None:
    outcomes = wire_fuzz.fuzz_http(3_000, seed=20)
    assert outcomes["result"] > 100
    assert min(outcomes[code] for code in ("bad_reply", "reply_lost", "not_sent", "redirect_refused")) > 10


def test_random_packets_of_a_query_port_give_results_or_typed_errors() -> None:
    outcomes = wire_fuzz.fuzz_query_port(2_000, seed=20)
    assert min(outcomes[code] for code in ("result", "query_failed", "query_refused", "redirect_refused")) > 50


@pytest.mark.deep
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("seed", [1, 2])
def test_tens_of_thousands_of_replies_and_streams(seed: int) -> None:
    replies, streams = scaled(75_000), scaled(50_000)
    assert wire_fuzz.fuzz_http(replies, seed)["replies"] >= replies
    assert wire_fuzz.fuzz_query_port(streams, seed)["streams"] >= streams


def test_an_error_without_a_type_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "typed_error", lambda error, *_, **__: error)
    with pytest.raises(AssertionError, match="not typed"):
        wire_fuzz.fuzz_query_port(2_000, seed=1)


def test_a_redirect_to_another_host_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RedirectRules, "allows", lambda *_: True)
    with pytest.raises(AssertionError, match="not allowed"):
        wire_fuzz.fuzz_http(2_000, seed=1)


def test_a_commit_without_proof_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "_state", lambda _: LabelState.VISIBLE)
    with pytest.raises(AssertionError, match="VISIBLE"):
        reply_fuzz.fuzz_replies(5_000, seed=1)


def test_a_row_that_is_dropped_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = TransactionAssembler.feed

    def forgetful(*arguments: object) -> object:
        step = feed(*arguments)  # type: ignore[arg-type]
        object.__setattr__(
            step, "released", [replace(transaction, rows=transaction.rows.slice(1)) for transaction in step.released]
        )
        return step

    monkeypatch.setattr(TransactionAssembler, "feed", forgetful)
    with pytest.raises(AssertionError):
        event_fuzz.fuzz_events(20_000, seed=1)


def test_the_independent_reader_knows_proof_when_it_sees_it() -> None:
    assert reply_fuzz.says_visible(200, b'{"status":"OK","state":"VISIBLE"}')
    assert not reply_fuzz.says_visible(200, b'{"status":"FAILED","state":"VISIBLE"}')
    assert not reply_fuzz.says_visible(500, b'{"status":"OK","state":"VISIBLE"}')
    assert not reply_fuzz.says_visible(200, b'{"status":"OK","state":"COMMITTED"}')


def test_answers_repeat_from_their_seed() -> None:
    assert [reply_fuzz.answer(random.Random(5)) for _ in range(2)] == [reply_fuzz.answer(random.Random(5))] * 2
    assert model.POSITION in event_fuzz.SCHEMA.names


def test_the_command_ends_with_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--replies", "500", "--events", "2000", "--http", "200", "--query", "200", "--seed", "3"]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["replies"]["answers"] >= 500
    assert summary["events"]["events"] >= 2000
