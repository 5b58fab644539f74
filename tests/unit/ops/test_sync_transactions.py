"""What a dry run of `sync` says about a connector whose messages name no source transactions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from starrocks_emulator.server import Emulator
from starrocks_txn_ops import cli
from starrocks_txn_ops.doctor.target import Finding, Severity
from starrocks_txn_ops.sync.settings import Sync, parse_sync
from starrocks_txn_ops.sync.transactions import judge_transactions, needs_transactions
from starrocks_txn_sink.assembler.verified.intake import EVENTS, check_events
from starrocks_txn_sink.errors import InputError
from tests.support import debezium_feed
from tests.support.connect_schema import field, key
from tests.support.debezium_feed import marker, mysql, postgres, sql_server
from tests.support.query_port import query

GOOD, WARNING, FAILURE, SKIPPED = Severity.GOOD, Severity.WARNING, Severity.FAILURE, Severity.SKIPPED
OLD = {**postgres("orders", 7), "name": "old"}
ORDERS = postgres("orders", 7)
SENTENCE = "A change has no transaction."


def text(source: str = "", checkpoint: str = "/nowhere/checkpoint") -> str:
    return (
        f"[source]\nbrokers = \"b:9092\"\ntopics = 'shop\\..*'\n{source}"
        '[target]\nload_url = "http://fe:8030"\nquery_url = "mysql://fe:9030"\ndatabase = "shop"\n'
        f'[query]\ncheckpoint = "{checkpoint}"\n'
    )


def row(source: dict[str, Any], txn: str | None = None, **more: Any) -> dict[str, Any]:
    return debezium_feed.change(source, txn, 1, {"id": 1}, **more)


def judged(messages: Sequence[Any], sync: Sync | None = None) -> Finding:
    """The finding; the newest message comes first."""
    values = [None if message is None else json.dumps(message).encode() for message in messages]
    return judge_transactions(sync or parse_sync(text()), [(b'{"id":1}', value) for value in values])


WITHOUT, WITH, SNAPSHOT = row(ORDERS), row(ORDERS, "5:7"), row(ORDERS, op="r")
MESSAGE = {**row({**ORDERS, "table": ""}, op="m"), "after": None, "message": {"prefix": "p", "content": ""}}
END = marker("END", "5:9", {"public.orders": 1})


@pytest.mark.parametrize(
    ("messages", "whole", "elsewhere"),
    [
        ([WITHOUT], FAILURE, WARNING),
        ([row(ORDERS, op="u"), SNAPSHOT, None], FAILURE, WARNING),
        ([row(ORDERS, op="d", before={"id": 1}), SNAPSHOT], FAILURE, WARNING),
        ([WITH, END], GOOD, GOOD),
        ([END], GOOD, GOOD),
        ([WITH, SNAPSHOT, marker("BEGIN", "5:7")], GOOD, GOOD),
        ([WITH, SNAPSHOT], WARNING, WARNING),  # the transaction topic is not among the topics
        # The connector was switched over: a query that reads the older change fails, one that begins behind it runs.
        ([WITH, WITHOUT, END], FAILURE, GOOD),
        ([WITH, row(OLD)], FAILURE, WARNING),
        ([WITHOUT, WITH], FAILURE, WARNING),
        # These show nothing about it.
        ([], SKIPPED, SKIPPED),
        ([None, SNAPSHOT, SNAPSHOT], SKIPPED, SKIPPED),
        ([{"ts_ms": 1}, {"ddl": "CREATE TABLE t (id INT)", "tableChanges": []}, MESSAGE], SKIPPED, SKIPPED),
        ([{"no": "envelope"}, {"op": 3}], SKIPPED, SKIPPED),
        ([row(mysql("orders", "binlog.000001", 4))], FAILURE, WARNING),
        ([row(sql_server("orders", "0001:0001:0001"), "5")], FAILURE, WARNING),
    ],
)
def test_changes_are_judged_as_the_query_judges_them(
    messages: list[Any], whole: Severity, elsewhere: Severity, tmp_path: Path
) -> None:
    assert judged(messages).severity is whole
    (tmp_path / "commits").mkdir()
    assert judged(messages, parse_sync(text(checkpoint=str(tmp_path)))).severity is whole  # no micro-batch has ended
    (tmp_path / "commits" / "0").touch()
    for sync in (
        text(checkpoint=str(tmp_path)),
        text(checkpoint="s3a://bucket/checkpoint"),
        text('starting_offsets = "latest"\n'),
        text('[source.options]\nstartingTimestamp = "5"\n'),
    ):
        assert judged(messages, parse_sync(sync)).severity is elsewhere, sync


def test_the_words_are_those_of_the_query_and_no_value_of_a_row_is_shown() -> None:
    finding = judged([row({**ORDERS, "table": "secret"}, before={"id": "a value of a row"})])
    change = dict.fromkeys(EVENTS.names) | {"op": "c", "row": "{}"}
    with pytest.raises(InputError) as refused:
        check_events(EVENTS.empty_table().from_pylist([change], EVENTS), "shop")
    assert (finding.what, finding.advice) == (refused.value.message, refused.value.advice)
    assert (finding.what, finding.place) == (SENTENCE, "public.secret")
    assert "provide.transaction.metadata=true" in finding.advice
    assert 'transactions="none"' in finding.advice
    assert "a value of a row" not in str(finding)


@pytest.mark.parametrize(
    ("source", "needed"),
    [
        ("", True),
        ('transactions = "none"\n', False),
        ('format = "canal"\ntransactions = "none"\n', False),
        ('format = "maxwell"\n', False),
    ],
)
def test_only_whole_transactions_of_debezium_need_its_metadata(source: str, needed: bool) -> None:
    assert needs_transactions(parse_sync(text(source))) == needed


def test_topics_that_leave_the_transaction_topic_out_are_found_while_there_is_only_a_snapshot() -> None:
    narrow = text().replace("shop\\..*", r"shop\.public\..*")
    found = judged([SNAPSHOT], parse_sync(narrow))
    assert (found.severity, "topics does not match shop.transaction" in found.what) == (WARNING, True)
    named = narrow.replace("[target]", 'transaction_topic = "public.marks"\n[target]')
    assert judged([SNAPSHOT], parse_sync(named)).severity is SKIPPED


@pytest.mark.parametrize("create", ["true", "false"])
@pytest.mark.parametrize(
    ("op", "code", "begin"),
    [
        ("c", 1, f"-- FAIL source.transactions: {SENTENCE}  [public.orders]"),
        ("r", 0, "-- skip source.transactions: not checked: no change after the snapshot shows yet whether"),
    ],
)
def test_a_dry_run_says_what_the_first_micro_batch_would(
    op: str, code: int, begin: str, create: str, server: Emulator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    place = next(iter(broker.list_topics(timeout=10).brokers.values()))
    fields = [{**field("int64"), "field": "id"}]
    schema = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": fields}]}
    value = json.dumps({"schema": schema, "payload": row(ORDERS, op=op)}).encode()
    broker.produce("shop.public.orders", value, key({"id": field("int64")}, {"id": 1}), partition=0)
    assert broker.flush(10) == 0
    if create == "false":
        query(server, "CREATE TABLE shop.orders (id BIGINT NOT NULL) PRIMARY KEY (id) DISTRIBUTED BY HASH (id)")
    settings = text(checkpoint=str(tmp_path / "checkpoint")).replace("b:9092", f"{place.host}:{place.port}")
    settings = settings.replace("http://fe:8030", server.load_url).replace("mysql://fe:9030", server.query_url)
    for kind, expected in (("whole", code), ("none", 0)):
        file = tmp_path / f"{kind}.toml"
        file.write_text(
            settings.replace("[target]", f'transactions = "{kind}"\n[target]') + f"[tables]\ncreate = {create}\n"
        )
        assert cli.main(["sync", str(file), "--dry-run", "--deadline", "30"]) == expected
        lines = capsys.readouterr().out.splitlines()
        of_source = [line for line in lines if "source.transactions" in line]
        assert [line.startswith(begin) for line in of_source] == [True] * (kind == "whole"), lines
        assert any("A job would fail." in line for line in lines) == bool(expected), lines
