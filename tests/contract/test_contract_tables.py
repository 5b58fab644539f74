"""Wire contract 4: several tables in one transaction, loads one at a time, verdict at commit."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

import pymysql
import pytest

from tests.support.contract_client import Client, RawConnection, Reply, fresh, raw_connection, request_head
from tests.support.waiting import wait_until

PREFIX = "class com.starrocks.common.StarRocksException: "
ONE_ROW = b'{"id": 1, "v": "a"}'
OTHER_ROW = b'{"id": 2, "v": "b"}'
HALF = 3


@contextlib.contextmanager
def half_sent(client: Client, label: str, table: str) -> Iterator[RawConnection]:
    """A load of ONE_ROW whose first bytes are sent; the server has asked for them, so it holds the table."""
    location = client.probe(label, table).location
    headers = client.headers(label, table=table, format="json", Expect="100-continue")
    with raw_connection(location) as connection:
        connection.send(request_head(client, location, headers | {"Content-Length": str(len(ONE_ROW))}))
        assert connection.read_head()[0] == HTTPStatus.CONTINUE
        connection.send(ONE_ROW[:HALF])
        yield connection


def test_tables_are_named_per_load_and_become_visible_together(client: Client) -> None:
    """Wire contract 4.3, 4.11."""
    first, second, label = client.table(), client.table(), client.begin()
    client.loaded(label, first, ONE_ROW)
    client.loaded(label, second, OTHER_ROW)
    assert client.rows(first) == client.rows(second) == []
    assert client.commit(label).ok
    client.wait_for_state(label, "VISIBLE")
    assert (client.rows(first), client.rows(second)) == ([(1, "a")], [(2, "b")])


def test_all_tables_share_one_transaction_id(client: Client) -> None:
    """Wire contract 4.11 [R: a commit of two tables]."""
    label = client.begin()
    ids = {client.loaded(label, client.table(), ONE_ROW).json["TxnId"] for _ in range(2)}
    ids.add(client.commit(label).json["TxnId"])
    assert len(ids) == 1


def test_an_unknown_table_aborts_the_transaction(client: Client) -> None:
    """Wire contract 4.3, 4.8 [R: refusals at load]."""
    label, table, unknown = client.begin(), client.table(), fresh("no_such")
    client.loaded(label, table, ONE_ROW)
    reply = client.probe(label, unknown)
    assert reply.status == "FAILED"
    assert reply.message == (
        f"class com.starrocks.common.MetaNotFoundException: Failed to find table {unknown} in db "
        f"{client.server.database}"
    )
    assert "has already been cancelled" in client.probe(label, table).message
    assert client.commit(label).status == "FAILED"
    assert client.rollback(label).ok
    assert client.rows(table) == []


def test_a_load_without_a_table_aborts_the_transaction(client: Client) -> None:
    """Wire contract 4.3 [R: refusals at load]."""
    label = client.begin()
    reply = client.send("PUT", client.url("load"), client.headers(label), b"")
    assert (reply.status, reply.message.partition(":")[0]) == ("FAILED", "class java.lang.NullPointerException")
    assert client.commit(label).status == "FAILED"


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"format": "parquet"}, "Unknown data format parquet"),
        ({"columns": "id,other"}, "Column has no default value. column: n"),
        ({"columns": "n", "partial_update": "true"}, "key column id not in partial update columns"),
    ],
    ids=["unknown format", "NOT NULL column left out", "partial update without its key"],
)
def test_a_load_without_a_plan_cancels_the_transaction_and_says_why(
    client: Client, headers: dict[str, str], reason: str
) -> None:
    """Wire contract 2.2, 4.7, 4.8 [R: refusals at load]: whatever was loaded, and in every later answer to a load."""
    label, filled, table = client.begin(), client.table(), client.table("id INT NOT NULL, n INT NOT NULL")
    client.loaded(label, filled, ONE_ROW)
    refused = client.probe(label, table, **{"format": "json", **headers})
    text = f"label{{{label}}}, error_msg{{cancel stream task for exception: {reason}}}"
    assert refused.status == "FAILED"
    assert refused.message.partition(", ")[2] == text
    assert int(refused.json["Cancelled time"]) < 0
    assert client.probe(label, filled).message == (
        f"stream load task {label} has already been cancelled: {refused.message}"
    )
    assert client.commit(label).message.startswith("Can not commit CANCELLED transaction ")
    assert "has already aborted" in client.rollback(label).message
    loads = client.loads(label)
    assert {name: row["STATE"] for name, row in loads.items()} == {filled: "CANCELLED", table: "CANCELLED"}
    assert loads[table]["ERROR_MSG"] == f"LOAD exception: {refused.message}"
    assert client.rows(filled) == []


def test_another_database_aborts_the_transaction(client: Client) -> None:
    """Wire contract 4.2 [R: refusals at load]."""
    label, table = client.begin(), client.table()
    client.loaded(label, table, ONE_ROW)
    reply = client.probe(label, table, db=client.server.other)
    assert reply.status == "FAILED"
    assert reply.message == (
        f"{PREFIX}Request database {client.server.other} not equal transaction database {client.server.database}"
    )
    assert client.commit(label).status == "FAILED"
    assert client.rollback(label).ok


def test_an_aborted_transaction_rolls_back_with_ok(client: Client) -> None:
    """Wire contract 4.8 [R: refusals at load]."""
    label = client.begin()
    client.probe(label, fresh("no_such"))
    reply = client.rollback(label)
    assert reply.ok
    assert "has already aborted" in reply.message


def test_loads_of_one_table_go_to_one_backend(client: Client) -> None:
    """Wire contract 4.4."""
    label, table = client.begin(), client.table()
    assert len({client.probe(label, table).location for _ in range(3)}) == 1


def test_repeated_loads_of_a_table_are_appended(client: Client) -> None:
    """Wire contract 4.6."""
    label, table = client.begin(), client.table()
    client.loaded(label, table, ONE_ROW)
    client.loaded(label, table, OTHER_ROW)
    assert client.commit(label).ok
    assert client.rows(table) == [(1, "a"), (2, "b")]


def test_the_last_row_of_a_key_wins_within_a_transaction(client: Client) -> None:
    """Wire contract 4.10 (inferred): arrival order."""
    label, table = client.begin(), client.table()
    client.loaded(label, table, b'{"id": 1, "v": "first"}')
    client.loaded(label, table, b'{"id": 1, "v": "second"}{"id": 1, "v": "third"}')
    assert client.commit(label).ok
    assert client.rows(table) == [(1, "third")]


def test_other_parameters_than_the_first_loads_are_refused(client: Client) -> None:
    """Wire contract 2.5, 4.6, 4.8: and the context is ABORTED from then on."""
    label, table = client.begin(), client.table()
    client.loaded(label, table, ONE_ROW)
    reply = client.load(label, table, OTHER_ROW, strict_mode="true")
    assert (reply.status, reply.message) == ("INTERNAL_ERROR", "load request not equal last.")
    assert client.load(label, table, OTHER_ROW).status == "ABORTED"


def test_another_format_than_the_first_loads_is_refused(client: Client) -> None:
    """Wire contract 2.5."""
    label, table = client.begin(), client.table()
    client.loaded(label, table, ONE_ROW)
    reply = client.load(label, table, b"2\tb\n", format="csv")
    assert reply.status == "INTERNAL_ERROR"
    assert reply.message == "stream load context's format is not same as format from cur http header"


def test_tables_may_differ_in_their_parameters(client: Client) -> None:
    """Wire contract 4.6."""
    first, second, label = client.table(), client.table(), client.begin()
    client.loaded(label, first, ONE_ROW)
    client.loaded(label, second, b"2\tb\n", format="csv")
    assert client.commit(label).ok
    assert (client.rows(first), client.rows(second)) == ([(1, "a")], [(2, "b")])


def test_a_second_load_of_a_busy_table_is_in_processing_and_takes_nothing(client: Client) -> None:
    """Wire contract 2.5, 4.5: it has the label, and does not hurt the transaction."""
    label, table = client.begin(), client.table()
    with half_sent(client, label, table) as connection:
        refusal = client.load(label, table, b"")
        assert refusal.status == "TXN_IN_PROCESSING"
        assert refusal.message.startswith("Transaction")
        assert refusal.json["Label"] == label
        assert client.load(label, table, OTHER_ROW).status == "TXN_IN_PROCESSING"
        connection.send(ONE_ROW[HALF:])
        assert connection.read_json()["Status"] == "OK"
    assert client.commit(label).ok
    assert client.rows(table) == [(1, "a")]


def test_a_refused_load_is_answered_before_its_body_which_is_the_next_request_then(client: Client) -> None:
    """Wire contract 2.5."""
    label, table = client.begin(), client.table()
    location = client.probe(label, table).location
    headers = client.headers(label, table=table, format="json") | {"Content-Length": str(len(ONE_ROW))}
    with half_sent(client, label, table), raw_connection(location) as connection:
        connection.send(request_head(client, location, headers))
        assert connection.read_json()["Status"] == "TXN_IN_PROCESSING"
        connection.send(ONE_ROW + request_head(client, location, headers))
        code, head = connection.read_head()
        assert code == HTTPStatus.BAD_REQUEST
        assert b"400 Bad Request" in connection.read_body(head)
        assert connection.ended()
    assert client.rollback(label).ok


def test_a_refused_load_that_waits_for_100_continue_leaves_its_connection_good(client: Client) -> None:
    """Wire contract 1.1, 2.5."""
    label, table = client.begin(), client.table()
    location = client.probe(label, table).location
    headers = client.headers(label, table=table, format="json", Expect="100-continue")
    head = request_head(client, location, headers | {"Content-Length": str(len(OTHER_ROW))})
    with raw_connection(location) as connection:
        with half_sent(client, label, table) as first:
            for _ in range(2):
                connection.send(head)
                assert connection.read_json()["Status"] == "TXN_IN_PROCESSING"
            first.send(ONE_ROW[HALF:])
            assert first.read_json()["Status"] == "OK"
        connection.send(head)
        assert connection.read_head()[0] == HTTPStatus.CONTINUE
        connection.send(OTHER_ROW)
        assert connection.read_json()["Status"] == "OK"
    assert client.rollback(label).ok


def test_the_table_is_free_as_soon_as_the_reply_is_there(client: Client) -> None:
    """Wire contract 4.5: a load right after a reply is never in processing."""
    label, table = client.begin(), client.table()
    for number in range(30):
        assert client.loaded(label, table, b'{"id": %d}' % number)
    assert client.commit(label).ok


def test_different_tables_load_at_the_same_time(client: Client) -> None:
    """Wire contract 4.5."""
    label, busy, free = client.begin(), client.table(), client.table()
    with half_sent(client, label, busy) as connection:
        client.loaded(label, free, OTHER_ROW)
        connection.send(ONE_ROW[HALF:])
        assert connection.read_json()["Status"] == "OK"
    assert client.commit(label).ok


def test_a_table_without_rows_fails_the_whole_commit(client: Client) -> None:
    """Wire contract 4.9 [R: a table without rows among others]: an empty load opens the table."""
    full, empty, label = client.table(), client.table(), client.begin()
    client.loaded(label, full, ONE_ROW)
    assert client.loaded(label, empty, b"").json["LoadBytes"] == 0
    reply = client.commit(label)
    assert reply.status == "FAILED"
    assert "No rows were imported from upstream" in reply.message
    assert client.rows(full) == []


def test_a_failed_commit_cancels_the_label_with_the_servers_message(client: Client) -> None:
    """Wire contract 2.2, 3.2 [R: a bad row in the only table]."""
    label, table = client.begin(), client.table()
    client.loaded(label, table, b"")
    message = client.commit(label).message
    assert message.startswith("STREAM_LOAD_TASK:")
    assert f", label{{{label}}}, error_msg{{cancel stream task for exception: " in message
    assert client.op("begin", label).json["ExistingJobStatus"] == "CANCELLED"
    assert client.rollback(label).ok


@pytest.mark.usefixtures("generation_c")
def test_c_names_the_failing_table(client: Client) -> None:
    """Wire contract 2.2, 10.1."""
    label, good, bad = client.begin(), client.table(), client.table()
    client.loaded(label, good, ONE_ROW)
    client.loaded(label, bad, b"")
    assert f"Failed to load table {bad}" in client.commit(label).message


def test_a_filtered_row_fails_the_commit_with_a_tracking_url(client: Client) -> None:
    """Wire contract 4.7, 4.9 [R: a bad row in the only table]: the load's OK said nothing about rows."""
    first, second, label = client.table(), client.table(), client.begin()
    client.loaded(label, first, ONE_ROW)
    client.loaded(label, second, OTHER_ROW + b'{"id": null, "v": "x"}')
    reply = client.commit(label)
    assert reply.status == "FAILED"
    assert "abnormal data more than max filter rate, tracking_url: http://" in reply.message
    assert client.rows(first) == client.rows(second) == []
    url = reply.message.partition("tracking_url: ")[2].rstrip("}")
    assert client.session.get(url, timeout=10).text.strip()


def test_max_filter_ratio_lets_filtered_rows_go(client: Client) -> None:
    """Wire contract 4.9, 5.7 [R: a bad row below the ratio]."""
    label, table = client.begin(), client.table()
    client.loaded(label, table, ONE_ROW + b'{"id": null}', max_filter_ratio="0.5")
    assert client.commit(label).ok
    assert client.rows(table) == [(1, "a")]


def test_all_rows_filtered_fails_even_with_ratio_one(client: Client) -> None:
    """Wire contract 4.9 [R: bad rows only, any ratio]."""
    label, table = client.begin(), client.table()
    client.loaded(label, table, b'{"id": null}', max_filter_ratio="1")
    assert client.commit(label).status == "FAILED"


def test_one_of_two_concurrent_commits_does_the_work(client: Client) -> None:
    """Wire contract 3.2: the other hears committing, or already committed."""
    label, table = client.begin(), client.table()
    client.loaded(label, table, ONE_ROW)
    replies = []
    threads = [threading.Thread(target=lambda: replies.append(Client(client.server).commit(label))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [reply for reply in replies if reply.ok and "ChannelId" in reply.json]
    messages = [reply.message for reply in replies if reply not in winners]
    assert len(winners) == 1
    assert all("is already committing" in text or "has already committed" in text for text in messages)
    assert client.rows(table) == [(1, "a")]


def test_rollback_during_a_load_is_ok_and_drops_it(client: Client) -> None:
    """Wire contract 3.2, 4.8: an abandoned body cannot come back, though its load is answered OK."""
    label, table = client.begin(), client.table()
    with half_sent(client, label, table) as connection:
        assert client.load(label, table, b"").status == "TXN_IN_PROCESSING"
        assert client.rollback(label).ok
        connection.send(ONE_ROW[HALF:])
        assert connection.read_json()["Status"] == "OK"
    assert client.commit(label).status == "FAILED"
    assert client.rows(table) == []


def test_commit_during_a_load_is_ok_and_leaves_its_body_out(client: Client) -> None:
    """Wire contract 4.8 [R]: the load is answered OK all the same."""
    label, table = client.begin(), client.table()
    client.loaded(label, table, OTHER_ROW)
    with half_sent(client, label, table) as connection:
        assert client.commit(label).ok
        connection.send(ONE_ROW[HALF:])
        assert connection.read_json()["Status"] == "OK"
    assert client.rows(table) == [(2, "b")]


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_a_body_for_an_ended_label_finds_no_transaction(client: Client, ending: str) -> None:
    """Wire contract 2.5: a rollback reaches the backend a moment after its OK; until then a body is taken, and lost."""
    label, table = client.begin(), client.table()
    client.loaded(label, table, ONE_ROW)
    location = client.probe(label, table).location
    assert client.op(ending, label).ok
    headers = client.headers(label, table=table, format="json")
    replies: list[Reply] = []

    def refused() -> bool:
        replies.append(client.send("PUT", location, headers, OTHER_ROW))
        return replies[-1].status == "TXN_NOT_EXISTS"

    wait_until(refused)
    assert replies[-1].message == f"Transaction with label {label} not exists"
    assert client.rows(table) == ([(1, "a")] if ending == "commit" else [])


def test_more_replicas_than_backends_are_refused(client: Client) -> None:
    """Wire contract 10.8 [R: statements]."""
    with pytest.raises(pymysql.err.MySQLError) as refused:
        client.server.sql(
            f"CREATE TABLE {client.server.database}.{fresh('t')} (id INT NOT NULL) PRIMARY KEY (id) "
            'DISTRIBUTED BY HASH(id) BUCKETS 1 PROPERTIES ("replication_num" = "99")'
        )
    assert refused.value.args[0] == 1064


def test_several_clients_may_create_a_table_if_it_does_not_exist(client: Client) -> None:
    """Wire contract 10.8: IF NOT EXISTS has no race."""
    ddl = (
        f"CREATE TABLE IF NOT EXISTS {client.server.database}.{fresh('t')} (id INT NOT NULL) PRIMARY KEY (id) "
        'DISTRIBUTED BY HASH(id) BUCKETS 1 PROPERTIES ("replication_num" = "1")'
    )
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(client.server.sql, [ddl] * 8)) == [[]] * 8


@pytest.mark.parametrize(
    "setting",
    [
        pytest.param("cbo_use_lock_db = true", id="lock"),
        pytest.param("follower_query_forward_mode = 'leader'", id="forward"),
    ],
)
def test_a_session_may_choose_how_it_reads(client: Client, setting: str) -> None:
    """Wire contract 4.11, 10.11 [R: statements]."""
    assert client.server.sql(f"SET {setting}") == []


def test_a_partition_that_is_not_open_fails_the_commit(client: Client, generation_b: None) -> None:  # noqa: ARG001
    """Wire contract 4.17: the first table of a label cannot ask for one, and the commit says nothing of partitions."""
    table, database = fresh("days"), client.server.database
    client.server.sql(
        f"CREATE TABLE {database}.{table} (id INT NOT NULL, d DATETIME NOT NULL) PRIMARY KEY(id, d) "
        "PARTITION BY date_trunc('day', d) DISTRIBUTED BY HASH(id) BUCKETS 1 PROPERTIES ('replication_num' = '1')"
    )
    body = '[{"id": 1, "d": "2024-02-29 12:00:00"}]'

    def commit() -> Reply:
        label = client.begin()
        client.loaded(label, table, body, strip_outer_array="true")
        return client.commit(label)

    refused = commit()
    assert not refused.ok
    assert "No rows were imported from upstream" in refused.json["Message"]
    client.server.sql(
        f"ALTER TABLE {database}.{table} ADD PARTITIONS START ('2024-02-29') END ('2024-03-01') EVERY (INTERVAL 1 DAY)"
    )
    assert [row[1] for row in client.server.sql(f"SHOW PARTITIONS FROM {database}.{table}")] == ["p20240229"]
    assert commit().ok
