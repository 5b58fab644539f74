"""Wire contract 1.2, 2.3, 3.1, 11: transactions of one table, Stream Load, merge commit."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests

from tests.support.contract_client import Client, Reply, fresh
from tests.support.waiting import wait_until

PREFIX = "class com.starrocks.common.StarRocksException: "
ROW = b'{"id": 1, "v": "a"}'
COUNTS = {"NumberTotalRows": 1, "NumberLoadedRows": 1, "NumberFilteredRows": 0, "NumberUnselectedRows": 0}


@pytest.fixture
def table(client: Client) -> str:
    return client.table()


def headers(client: Client, label: str, **more: str) -> dict[str, str]:
    return {"db": client.server.database, "label": label, **more}


def op(client: Client, operation: str, label: str, **more: str) -> Reply:
    """One operation without a body, redirect and all."""
    all_headers = headers(client, label, **more)
    reply = client.send("POST", client.url(operation), all_headers)
    return client.send("POST", reply.location, all_headers) if reply.code == 307 else reply


def load(client: Client, label: str, table: str, body: bytes = ROW, **more: str) -> Reply:
    all_headers = headers(client, label, **{"table": table, "format": "json", **more})
    reply = client.send("PUT", client.url("load"), all_headers, b"")
    return client.send("PUT", reply.location, all_headers, body) if reply.code == 307 else reply


def begun(client: Client, table: str, **more: str) -> str:
    label = fresh("s")
    reply = op(client, "begin", label, table=table, **more)
    assert reply.ok, reply
    return label


def loaded(client: Client, table: str, body: bytes = ROW, **more: str) -> str:
    label = begun(client, table)
    reply = load(client, label, table, body, **more)
    assert reply.ok, reply
    return label


def stream(client: Client, table: str, body: bytes = ROW, **more: str) -> Reply:
    """A Stream Load in two steps, so that the body goes to the backend at once."""
    url = f"{client.server.load_url}/api/{client.server.database}/{table}/_stream_load"
    all_headers = {"format": "json", **more}
    reply = client.send("PUT", url, {**all_headers, "Expect": "100-continue"}, b"")
    return client.send("PUT", reply.location, all_headers, body) if reply.code == 307 else reply


@pytest.mark.parametrize("operation", ["begin", "load", "prepare", "commit", "rollback"])
def test_operations_on_one_table_go_to_a_backend(client: Client, table: str, operation: str) -> None:
    """Wire contract 1.2."""
    label = fresh("s") if operation == "begin" else begun(client, table)
    method = "PUT" if operation == "load" else "POST"
    reply = client.send(method, client.url(operation), headers(client, label, table=table))
    assert reply.code == 307
    assert reply.location.endswith(f"/api/transaction/{operation}")


def test_begin_of_one_table_answers_its_transaction(client: Client, table: str) -> None:
    """Wire contract 2.3."""
    label = fresh("s")
    reply = op(client, "begin", label, table=table).json
    assert isinstance(reply.pop("TxnId"), int)
    assert isinstance(reply.pop("BeginTxnTimeMs"), int)
    assert reply == {"Status": "OK", "Message": "", "Db": client.server.database, "Table": table, "Label": label}
    assert client.state(label) == "PREPARE"


def test_commit_of_one_table_answers_counts(client: Client, table: str) -> None:
    """Wire contract 2.3."""
    label = loaded(client, table)
    reply = op(client, "commit", label, table=table)
    assert reply.ok
    assert {name: reply.json[name] for name in COUNTS} == COUNTS
    assert reply.json["LoadBytes"] == len(ROW)
    client.wait_for_state(label, "VISIBLE")
    assert client.rows(table) == [(1, "a")]


def test_what_is_prepared_is_committed_by_the_frontend(client: Client, table: str) -> None:
    """Wire contract 1.2, 2.3, 3.1."""
    label = loaded(client, table)
    prepared = op(client, "prepare", label)
    assert {name: prepared.json[name] for name in COUNTS} == COUNTS
    assert (client.state(label), client.rows(table)) == ("PREPARED", [])
    assert load(client, label, table).status == "TXN_NOT_EXISTS"
    reply = client.send("POST", client.url("commit"), headers(client, label))
    identity = {"Label": label, "TxnId": prepared.json["TxnId"]}
    assert (reply.code, reply.json) == (200, {"Status": "OK", "Message": "", **identity})
    client.wait_for_state(label, "VISIBLE")
    assert client.rows(table) == [(1, "a")]


def test_what_is_prepared_can_be_rolled_back(client: Client, table: str) -> None:
    """Wire contract 3.1."""
    label = loaded(client, table)
    assert op(client, "prepare", label).ok
    assert op(client, "rollback", label).ok
    assert client.load_state(label).json["state"] == "ABORTED"
    assert client.rows(table) == []


def test_bad_rows_fail_prepare(client: Client, table: str) -> None:
    """Wire contract 2.3, 3.1."""
    label = loaded(client, table, b'{"v": "a"}')
    assert op(client, "prepare", label).status == "INTERNAL_ERROR"
    assert client.state(label) == "ABORTED"


def test_a_committed_label_of_one_table_stays_taken(client: Client, table: str) -> None:
    """Wire contract 3.1."""
    label = loaded(client, table)
    assert op(client, "commit", label).ok
    again = op(client, "commit", label)
    txn_id = again.json["TxnId"]
    assert again.message == f"Transaction {txn_id} has already committed, label is {label}"
    assert op(client, "rollback", label).message == (
        f"{PREFIX}Can not abort VISIBLE transaction {txn_id}, label is {label}"
    )
    reply = op(client, "begin", label, table=table)
    assert (reply.status, reply.json["ExistingJobStatus"]) == ("LABEL_ALREADY_EXISTS", "FINISHED")
    assert load(client, label, table).status == "TXN_NOT_EXISTS"


def test_an_aborted_label_of_one_table_is_free_again(client: Client, table: str) -> None:
    """Wire contract 3.1."""
    label = loaded(client, table)
    assert op(client, "rollback", label).json == {"Status": "OK", "Message": "", "Db": "", "Table": "", "Label": label}
    again = op(client, "rollback", label)
    assert again.message == f"Transaction {again.json['TxnId']} has already aborted, label is {label}"
    assert op(client, "commit", label).message.startswith(f"{PREFIX}Can not commit ABORTED transaction ")
    assert load(client, label, table).status == "TXN_NOT_EXISTS"
    assert op(client, "begin", label, table=table).ok
    assert load(client, label, table).ok
    assert op(client, "commit", label).ok
    assert client.rows(table) == [(1, "a")]


def test_a_begun_label_of_one_table_cannot_be_begun_again(client: Client, table: str) -> None:
    """Wire contract 3.1."""
    label = begun(client, table)
    assert op(client, "begin", label, table=table).status == "LABEL_ALREADY_EXISTS"
    assert op(client, "rollback", label).ok


def test_a_commit_of_one_table_without_a_load_rolls_back(client: Client, table: str) -> None:
    """Wire contract 2.5, 3.1."""
    label = begun(client, table)
    reply = op(client, "commit", label)
    assert reply.status == "INTERNAL_ERROR"
    assert "hasn't send any data yet" in reply.message
    assert client.state(label) == "ABORTED"


@pytest.mark.parametrize("operation", ["load", "prepare", "commit", "rollback"])
def test_an_unknown_label_of_one_table_fails(client: Client, table: str, operation: str) -> None:
    """Wire contract 2.5, 3.1."""
    label = fresh("s")
    reply = load(client, label, table) if operation == "load" else op(client, operation, label, table=table)
    database = client.server.database
    message = (
        f"Can't find the transaction with db [{database}] and label[{label}]. "
        if operation == "load"
        else (f"No transaction found with db[{database}] and label[{label}]")
    )
    assert reply.status == "FAILED"
    assert reply.message.startswith(PREFIX + message)


def test_a_refused_load_aborts_a_transaction_of_one_table(client: Client) -> None:
    """Wire contract 3.1."""
    table = client.table("id INT NOT NULL, needed BIGINT NOT NULL", "DUPLICATE KEY(id)")
    label = begun(client, table)
    refused = load(client, label, table, b"1\n", format="csv", columns="id")
    assert (refused.status, refused.message) == ("ANALYSIS_ERROR", "Column has no default value. column: needed")
    assert load(client, label, table).status == "TXN_NOT_EXISTS"
    assert op(client, "commit", label).status == "FAILED"
    assert op(client, "rollback", label).ok


def test_a_load_keeps_to_the_table_and_database_of_its_begin(client: Client, table: str) -> None:
    """Wire contract 2.5."""
    label, database = begun(client, table), client.server.database
    reply = load(client, label, "elsewhere")
    assert reply.status == "INVALID_ARGUMENT"
    assert reply.message == f"Request table elsewhere not equal transaction table {table}"
    reply = load(client, label, table, db=client.server.other)
    assert reply.message == f"Request database {client.server.other} not equal transaction database {database}"
    assert load(client, label, table).ok


def test_loads_of_one_table_are_appended_under_the_same_properties(client: Client, table: str) -> None:
    """Wire contract 2.5, 4.6."""
    label = loaded(client, table)
    assert load(client, label, table, b'{"id": 2}').ok
    assert op(client, "commit", label).json["NumberLoadedRows"] == 2
    label = loaded(client, table)
    assert load(client, label, table, b"3\tc\n", format="csv").message == "load request not equal last."
    assert client.state(label) == "ABORTED"


def test_begin_of_one_table_wants_a_known_table(client: Client) -> None:
    """Wire contract 3.1."""
    reply = op(client, "begin", fresh("s"), table="nowhere")
    assert (reply.status, reply.message) == ("ANALYSIS_ERROR", f'unknown table "{client.server.database}.nowhere"')


@pytest.mark.parametrize("timeout", ["0", "259201"])
def test_begin_of_one_table_wants_a_timeout_within_bounds(client: Client, table: str, timeout: str) -> None:
    """Wire contract 4.12."""
    reply = op(client, "begin", fresh("s"), table=table, timeout=timeout)
    assert reply.status == "ANALYSIS_ERROR"
    assert reply.message == f"Invalid timeout: '{timeout}'. Expected values should be between 1 and 259200 seconds"


def test_filtered_rows_have_an_error_url(client: Client, table: str) -> None:
    """Wire contract 5.10."""
    label = loaded(client, table, b'{"v": "a"}')
    reply = op(client, "commit", label)
    assert (reply.status, reply.message) == ("INTERNAL_ERROR", "too many filtered rows")
    log = requests.get(client.server.reachable(reply.json["ErrorURL"]), timeout=10).text
    assert log == "Error: NULL value in non-nullable column 'id'. Row: [NULL, 'a', 0]\n"


def test_finished_transactions_show_their_prepared_timeout(client: Client, table: str) -> None:
    """Wire contract 6.5."""
    label = loaded(client, table)
    assert op(client, "prepare", label, prepared_timeout="300").ok
    assert op(client, "commit", label).ok
    client.wait_for_state(label, "VISIBLE")
    rows = client.server.sql(f"SHOW PROC '/transactions/{client.server.database}/finished'")
    (row,) = [row for row in rows if row[1] == label]
    assert (row[3], row[4], row[14]) == ("VISIBLE", "BACKEND_STREAMING", "300000")


@pytest.mark.parametrize(("text", "message"), [("0", "Invalid prepared_timeout: 0"), ("x", 'For input string: "x"')])
def test_a_prepared_timeout_is_a_number_of_seconds(client: Client, table: str, text: str, message: str) -> None:
    """Wire contract 1.1."""
    assert op(client, "prepare", loaded(client, table), prepared_timeout=text).message.endswith(message)


# --- Stream Load ------------------------------------------------------------------------------------------------------


def test_a_stream_load_is_one_transaction(client: Client, table: str) -> None:
    """Wire contract 11.1, 11.2."""
    label = fresh("s")
    reply = stream(client, table, label=label)
    assert (reply.status, reply.message, reply.json["Label"]) == ("Success", "OK", label)
    assert {name: reply.json[name] for name in COUNTS} == COUNTS
    assert reply.json["LoadBytes"] == len(ROW)
    client.wait_for_state(label, "VISIBLE")
    assert client.rows(table) == [(1, "a")]


def test_a_stream_load_makes_up_a_label(client: Client, table: str) -> None:
    """Wire contract 11.1."""
    assert stream(client, table).json["Label"] != stream(client, table).json["Label"]


def test_a_used_label_says_what_became_of_it(client: Client, table: str) -> None:
    """Wire contract 11.2."""
    label = fresh("s")
    assert stream(client, table, label=label).status == "Success"
    again = stream(client, table, label=label).json
    assert (again["TxnId"], again["Status"]) == (-1, "Label Already Exists")
    assert again["ExistingJobStatus"] == "FINISHED"
    assert again["Message"] == f"Label [{label}] has already been used."
    assert stream(client, table, label=begun(client, table)).json["ExistingJobStatus"] == "RUNNING"


def test_a_stream_load_wants_to_be_told_to_continue(client: Client, table: str) -> None:
    """Wire contract 11.1."""
    url = f"{client.server.load_url}/api/{client.server.database}/{table}/_stream_load"
    reply = client.send("PUT", url, {}, ROW)
    assert reply.message == "class com.starrocks.common.DdlException: There is no 100-continue header"


def test_a_stream_load_of_bad_rows_fails_with_counts_and_a_log(client: Client, table: str) -> None:
    """Wire contract 11.2."""
    label = fresh("s")
    reply = stream(client, table, b'{"id": 1}{"v": "x"}', label=label)
    assert (reply.status, reply.message) == ("Fail", "too many filtered rows")
    assert (reply.json["NumberLoadedRows"], reply.json["NumberFilteredRows"]) == (1, 1)
    assert reply.json["ErrorURL"].startswith("http://")
    assert client.state(label) == "ABORTED"
    assert client.rows(table) == []
    assert stream(client, table, b'{"id": 1}{"v": "x"}', max_filter_ratio="0.5").json["NumberFilteredRows"] == 1


def test_a_stream_load_without_rows_fails(client: Client, table: str) -> None:
    """Wire contract 11.2."""
    message = stream(client, table, b"").message
    assert message.startswith("fail to execute commit task: No rows were imported from upstream.")


@pytest.mark.parametrize(
    ("more", "body", "rows"),
    [
        ({"strip_outer_array": "true"}, b'[{"id": 1, "v": "a"}, {"id": 2}]', [(1, "a"), (2, None)]),
        ({"jsonpaths": '["$.k", "$.w"]', "columns": "id,v"}, b'{"k": 3, "w": "c"}', [(3, "c")]),
        ({"format": "csv"}, b"1\ta\n2\t\\N\n", [(1, "a"), (2, None)]),
        ({"format": "csv", "columns": "v,id", "column_separator": ","}, b"a,1", [(1, "a")]),
        (
            {"format": "csv", "column_separator": "\\x01", "row_delimiter": "\\x02"},
            b"1\x01a\x022\x01b\x02",
            [(1, "a"), (2, "b")],
        ),
        ({"format": "csv", "columns": "id,v,__op", "column_separator": ","}, b"1,a,0\n2,b,0\n1,a,1\n", [(2, "b")]),
    ],
)
def test_a_stream_load_reads_its_headers(
    client: Client, table: str, more: dict[str, str], body: bytes, rows: list[Any]
) -> None:
    """Wire contract 5.3, 5.4, 5.5, 5.6."""
    reply = stream(client, table, body, **more)
    assert reply.status == "Success", reply
    assert client.rows(table) == rows


def test_a_stream_load_updates_some_columns(client: Client) -> None:
    """Wire contract 5.8."""
    table = client.table("id INT NOT NULL, v VARCHAR(20), n INT")
    assert stream(client, table, b'{"id": 1, "v": "a", "n": 7}').status == "Success"
    more = {"partial_update": "true", "columns": "id,v", "format": "csv", "column_separator": ","}
    assert stream(client, table, b"1,b\n", **more).status == "Success"
    assert client.rows(table) == [(1, "b", 7)]


def test_a_stream_load_into_an_unknown_table_fails(client: Client) -> None:
    """Wire contract 11.2."""
    reply = stream(client, "nowhere")
    assert (reply.status, reply.json["TxnId"]) == ("Fail", -1)
    assert reply.message == f'unknown table "{client.server.database}.nowhere"'


def test_json_is_shown_with_its_keys_in_order(client: Client) -> None:
    """Wire contract 5.11."""
    table = client.table("id INT NOT NULL, j JSON")
    body = b'1\t{"b": [1,2],"a": true}\n2\t\n'
    assert stream(client, table, body, format="csv").status == "Success"
    assert client.rows(table) == [(1, '{"a": true, "b": [1, 2]}'), (2, '""')]


# --- merge commit -----------------------------------------------------------------------------------------------------

WINDOW = {"enable_merge_commit": "true", "merge_commit_interval_ms": "500", "merge_commit_parallel": "1"}


def test_merged_loads_share_a_transaction(client: Client, table: str) -> None:
    """Wire contract 11.3."""
    bodies = [json.dumps({"id": number}).encode() for number in (1, 2)]
    long = {**WINDOW, "merge_commit_interval_ms": "2000"}  # so that both come within it
    with ThreadPoolExecutor() as pool:
        replies = list(pool.map(lambda body: stream(client, table, body, **long), bodies))
    assert [reply.status for reply in replies] == ["Success", "Success"]
    assert len({reply.json["TxnId"] for reply in replies}) == 1
    assert {reply.json["Label"].startswith("merge_commit_") for reply in replies} == {True}
    assert client.rows(table, "id") == [(1,), (2,)]


def test_a_merged_load_may_not_wait(client: Client, table: str) -> None:
    """Wire contract 11.3."""
    label = fresh("s")
    reply = stream(client, table, ROW, label=label, **WINDOW, merge_commit_async="true")
    assert (reply.status, reply.json["RequestId"]) == ("Success", label)
    assert 0 <= reply.json["LeftMergeTimeMs"] <= 500
    client.wait_for_state(reply.json["Label"], "VISIBLE")
    wait_until(lambda: client.rows(table) == [(1, "a")])


def test_a_merged_load_of_bad_rows_says_where_the_log_is(client: Client, table: str) -> None:
    """Wire contract 11.3."""
    reply = stream(client, table, b'{"v": "a"}', **WINDOW)
    assert reply.status == "Fail"
    assert reply.message.startswith(
        "Load is aborted, reason: There is a data quality issue. Please check the tracking URL"
    )
    assert client.load_state(reply.json["Label"]).json["state"] == "ABORTED"


@pytest.mark.parametrize(
    ("name", "parameter"), [("merge_commit_interval_ms", "interval"), ("merge_commit_parallel", "parallel")]
)
def test_a_merged_load_wants_a_window(client: Client, table: str, name: str, parameter: str) -> None:
    """Wire contract 11.3."""
    reply = stream(client, table, ROW, **{**WINDOW, name: "0"})
    assert reply.json["msg"] == f"Batch write {parameter} must be set positive, but is 0"


def test_backends_for_merged_loads_can_be_asked_for(client: Client, table: str) -> None:
    """Wire contract 11.3."""
    url = f"{client.server.load_url}/api/{client.server.database}/{table}/_stream_load_meta?type=nodes"
    assert ":" in client.send("GET", url, WINDOW).json["nodes"]["http"]
    assert "nodes" not in client.send("GET", url, {}).json
