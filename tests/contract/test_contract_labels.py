"""Wire contract 2.2, 3.2, 7: what each state of a label answers to each operation."""

from __future__ import annotations

import time

import pytest

from tests.support.contract_client import Client, fresh
from tests.support.waiting import wait_until

PREFIX = "class com.starrocks.common.StarRocksException: "
ONE_ROW = b'{"id": 1, "v": "a"}'
SHORT = "4"
"""A timeout that a load meets on a busy machine, too, and that a test can outlive."""


def outlive(timeout: str) -> None:
    """Wait until a transaction that was begun before is older than its timeout."""
    over = time.monotonic() + float(timeout)
    wait_until(lambda: time.monotonic() > over)


@pytest.fixture
def table(client: Client) -> str:
    return client.table()


def test_begin_answers_ok_and_nothing_else(client: Client) -> None:
    """Wire contract 2.2 [R: begin]: no TxnId, no Label."""
    assert client.op("begin", fresh("l")).json == {"Status": "OK", "Message": ""}


def test_begin_needs_a_known_database(client: Client) -> None:
    """Wire contract 4.2 [R: begin]."""
    reply = client.op("begin", fresh("l"), db="no_such_db")
    assert (reply.status, reply.message) == ("FAILED", f"{PREFIX}Database[no_such_db] does not exist")


def test_a_live_label_cannot_be_begun_again(client: Client) -> None:
    """Wire contract 2.2 [R: begin]."""
    label = client.begin()
    reply = client.op("begin", label)
    assert reply.status == "LABEL_ALREADY_EXISTS"
    assert reply.json["ExistingJobStatus"] == "BEGIN"
    assert reply.message == f"Transaction already started with label [{label}], txnId: {reply.json['TxnId']}"


def test_the_label_alone_is_the_key_across_databases(client: Client) -> None:
    """Wire contract 3.2 [R: label reuse in another db]."""
    label = client.begin()
    assert client.op("begin", label, db=client.server.other).status == "LABEL_ALREADY_EXISTS"


def test_commit_and_rollback_do_not_compare_the_database(client: Client, table: str) -> None:
    """Wire contract 3.2 [R: a commit of two tables, the database named wrongly]."""
    label = client.begin()
    client.loaded(label, table, ONE_ROW)
    assert client.op("commit", label, db=client.server.other).ok
    assert client.op("rollback", client.begin(), db=client.server.other).ok


@pytest.mark.parametrize("operation", ["load", "commit"])
def test_an_unknown_label_does_not_exist(client: Client, table: str, operation: str) -> None:
    """Wire contract 3.2 [R: unknown label]."""
    label = fresh("l")
    reply = client.op(operation, label, table=table)
    assert (reply.status, reply.message) == ("FAILED", f"{PREFIX}stream load task {label} does not exist")


def test_rollback_of_an_unknown_label_lacks_the_spaces(client: Client) -> None:
    """Wire contract 3.2 [R: unknown label]: the server's literal text."""
    label = fresh("l")
    assert client.rollback(label).message == f"{PREFIX}stream load task{label}does not exist"


def test_an_empty_commit_is_ok_and_registers_nothing(client: Client) -> None:
    """Wire contract 2.2, 3.2 [R: commit no load]."""
    label = client.begin()
    assert client.commit(label).json == {"Status": "OK", "Message": ""}
    assert client.state(label) == "UNKNOWN"


def test_a_load_answers_bytes_and_no_row_counts(client: Client, table: str) -> None:
    """Wire contract 2.2."""
    label = client.begin()
    reply = client.loaded(label, table, ONE_ROW)
    assert reply.json["LoadBytes"] == len(ONE_ROW)
    assert reply.json["Label"] == label
    assert isinstance(reply.json["TxnId"], int)
    assert reply.json["StreamLoadPlanTimeMs"] == 0
    assert not any("Rows" in name for name in reply.json)


def test_load_bytes_are_those_of_one_load(client: Client, table: str) -> None:
    """Wire contract 2.2."""
    label = client.begin()
    client.loaded(label, table, ONE_ROW)
    assert client.loaded(label, table, b'{"id": 22}').json["LoadBytes"] == 10


def test_commit_answers_label_and_transaction_without_counts(client: Client, table: str) -> None:
    """Wire contract 2.2 [R: a commit of two tables]."""
    label = client.begin()
    txn_id = client.loaded(label, table, ONE_ROW).json["TxnId"]
    assert client.commit(label).json == {
        "Label": label,
        "TxnId": txn_id,
        "ChannelId": 0,
        "Prepared Channel Num": 1,
        "Status": "OK",
        "Message": "",
    }


def test_a_repeated_commit_is_ok(client: Client, table: str) -> None:
    """Wire contract 2.2, 3.2 [R: a commit of two tables]: this is how a lost reply is asked for again."""
    label = client.begin()
    txn_id = client.loaded(label, table, ONE_ROW).json["TxnId"]
    assert client.commit(label).ok
    reply = client.commit(label)
    assert reply.ok
    assert reply.message == f"Transaction {txn_id} has already committed, label is {label}"
    assert (reply.json["Label"], reply.json["TxnId"]) == (label, txn_id)
    assert len(client.rows(table)) == 1


def test_a_committed_label_refuses_begin_load_and_rollback(client: Client, table: str) -> None:
    """Wire contract 3.2 [R: a commit of two tables]."""
    label = client.begin()
    txn_id = client.loaded(label, table, ONE_ROW).json["TxnId"]
    assert client.commit(label).ok
    again = client.op("begin", label)
    assert again.status == "LABEL_ALREADY_EXISTS"
    assert again.message == f"Label [{label}] has already been used."
    assert again.json["ExistingJobStatus"] == "COMMITED"
    assert client.probe(label, table).message == f"stream load task {label} has already been commited"
    refused = client.rollback(label)
    assert refused.status == "FAILED"
    assert refused.message == f"Can not abort VISIBLE transaction {txn_id}, label is {label}"
    assert client.rows(table) == [(1, "a")]


def test_rollback_answers_ok(client: Client, table: str) -> None:
    """Wire contract 2.2 [R: rollback without a load]."""
    label = client.begin()
    client.loaded(label, table, ONE_ROW)
    assert client.rollback(label).json == {"Status": "OK", "Message": f"stream load {label} abort"}
    assert client.rows(table) == []


def test_a_rolled_back_label_is_not_reusable(client: Client, table: str) -> None:
    """Wire contract 3.2 [R: a rollback after loads]: unlike single-table mode, a new label is needed."""
    label = client.begin()
    txn_id = client.loaded(label, table, ONE_ROW).json["TxnId"]
    assert client.rollback(label).ok
    again = client.op("begin", label)
    assert (again.status, again.json["ExistingJobStatus"]) == ("LABEL_ALREADY_EXISTS", "CANCELLED")
    refused = client.probe(label, table)
    assert refused.status == "FAILED"
    assert refused.message.startswith(f"stream load task {label} has already been cancelled: ")
    assert client.commit(label).message == f"Can not commit CANCELLED transaction {txn_id}, label is {label}"
    repeated = client.rollback(label)
    assert repeated.ok
    assert repeated.message == f"Transaction {txn_id} has already aborted, label is {label}"


def test_prepare_is_unsupported_and_does_not_abort(client: Client, table: str) -> None:
    """Wire contract 2.2, 4.1 [R: prepare]."""
    label = client.begin()
    client.loaded(label, table, ONE_ROW)
    reply = client.op("prepare", label)
    assert (reply.status, reply.message) == ("FAILED", f"{PREFIX}Unsupported operation: TXN_PREPARE")
    assert client.commit(label).ok


def test_past_its_deadline_a_transaction_fails(client: Client, table: str) -> None:
    """Wire contract 3.2, 4.12 [R: a timeout of one second]: `timeout` counts from begin; plans meet it."""
    other_table, label = client.table(), client.begin(timeout=SHORT)
    client.loaded(label, table, ONE_ROW)
    outlive(SHORT)
    refused = client.probe(label, other_table)
    assert refused.status == "FAILED"
    assert "Load timeout. Increase the timeout and retry" in refused.message
    assert client.commit(label).status == "FAILED"
    assert client.rollback(label).ok
    assert client.rows(table) == []


def test_commit_past_the_deadline_fails(client: Client, table: str) -> None:
    """Wire contract 3.2, 4.12 [R: a commit after the timeout]."""
    label = client.begin(timeout=SHORT)
    client.loaded(label, table, ONE_ROW)
    outlive(SHORT)
    reply = client.commit(label)
    assert reply.status == "FAILED"
    assert label in reply.message
    assert client.rows(table) == []


@pytest.mark.usefixtures("generation_c")
def test_begin_takes_any_label_and_c_checks_it_at_the_first_load(client: Client, table: str) -> None:
    """Wire contract 7.1."""
    label = client.begin(label=fresh("not/a/label"))
    reply = client.probe(label, table)
    assert reply.status == "FAILED"
    assert f"Label format error. regex: ^[-\\w]{{1,128}}$, label: {label}" in reply.message
    assert client.commit(label).status == "FAILED"


@pytest.mark.usefixtures("generation_b")
def test_in_b_a_label_of_any_form_commits(client: Client, table: str) -> None:
    """Wire contract 7.1 [R: a label of a wrong form]."""
    label = client.begin(label=fresh("not/a/label"))
    client.loaded(label, table, ONE_ROW)
    assert client.commit(label).ok
    assert client.state(label) == "VISIBLE"
    assert client.rows(table) == [(1, "a")]


@pytest.mark.usefixtures("generation_c")
def test_an_over_long_label_is_refused_where_labels_are_checked(client: Client, table: str) -> None:
    """Wire contract 7.1."""
    longest = client.begin(label=fresh("l").ljust(128, "x"))
    assert client.probe(longest, table).code == 307
    too_long = client.begin(label=fresh("l").ljust(129, "x"))
    assert "Label format error" in client.probe(too_long, table).message
