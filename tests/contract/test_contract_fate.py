"""Wire contract 6: asking for a label's fate, by HTTP and by SQL."""

from __future__ import annotations

import pymysql
import pytest

from tests.support.contract_client import Client, fresh

ONE_ROW = b'{"id": 1, "v": "a"}'


def test_a_committed_label_is_visible(client: Client) -> None:
    """Wire contract 6.1 [R: a commit of two tables]."""
    label = client.committed((client.table(), ONE_ROW))
    answer = client.load_state(label).json
    assert answer["state"] == "VISIBLE"
    assert (answer["status"], answer["code"], answer["msg"], answer["message"]) == ("OK", "0", "Success", "OK")


def test_an_unknown_label_is_unknown(client: Client) -> None:
    """Wire contract 6.1 [R: a commit of two tables]."""
    assert client.state(fresh("l")) == "UNKNOWN"


def test_a_label_is_known_in_its_own_database_only(client: Client) -> None:
    """Wire contract 6.1 [R: the same label in another database]."""
    label = client.committed((client.table(), ONE_ROW))
    assert client.state(label, client.server.other) == "UNKNOWN"


def test_an_unknown_database_is_an_error(client: Client) -> None:
    """Wire contract 6.1 [R: begin]."""
    reply = client.load_state("l", "no_such_db")
    assert reply.code == 200
    assert reply.json["status"] == "FAILED"
    assert reply.json["code"] == "1"
    assert reply.json["msg"] == reply.json["message"] == "unknown database, database=no_such_db"


def test_no_label_is_an_error(client: Client) -> None:
    """Wire contract 6.1 [R: the state of labels]."""
    assert client.load_state("").json["msg"] == "No label selected."


def test_a_begun_label_is_unknown_until_it_is_registered(client: Client) -> None:
    """Wire contract 6.2 [R: a commit of two tables]."""
    label, table = client.begin(), client.table()
    assert client.state(label) == "UNKNOWN"
    client.probe(label, table)
    assert client.state(label) == {"B": "UNKNOWN", "C": "PREPARE"}[client.server.generation]


@pytest.mark.usefixtures("generation_b")
@pytest.mark.parametrize("ending", ["open", "empty commit", "rolled back", "cancelled by a load"])
def test_in_b_a_label_is_unknown_before_a_commit_with_loads(client: Client, ending: str) -> None:
    """Wire contract 6.1, 6.2 [R: a commit of two tables; a rollback after loads]: without a `reason`."""
    label, table = client.begin(), client.table()
    if ending == "empty commit":
        assert client.commit(label).ok
    else:
        client.loaded(label, table, ONE_ROW)
    if ending == "rolled back":
        assert client.rollback(label).ok
    elif ending == "cancelled by a load":
        assert client.probe(label, client.table(), format="parquet").status == "FAILED"
    answer = {"state": "UNKNOWN", "status": "OK", "code": "0", "msg": "Success", "message": "OK"}
    assert client.load_state(label).json == answer


def test_a_rolled_back_label_is_unknown_in_b_and_aborted_in_c(client: Client) -> None:
    """Wire contract 6.2 [R: a rollback after loads]."""
    label, table = client.begin(), client.table()
    client.loaded(label, table, ONE_ROW)
    assert client.rollback(label).ok
    assert client.state(label) == {"B": "UNKNOWN", "C": "ABORTED"}[client.server.generation]


def test_a_failed_commit_never_shows_as_committed(client: Client) -> None:
    """Wire contract 6.2 [R: a table without rows]."""
    label, table = client.begin(), client.table()
    client.loaded(label, table, b"")
    assert client.commit(label).status == "FAILED"
    assert client.state(label) in ("UNKNOWN", "ABORTED")


@pytest.mark.usefixtures("generation_c")
def test_cancel_reaches_a_registered_transaction(client: Client) -> None:
    """Wire contract 6.3."""
    label, table = client.begin(), client.table()
    client.loaded(label, table, ONE_ROW)
    url = f"{client.server.load_url}/api/{client.server.database}/{table}/_cancel?label={label}"
    assert client.send("POST", url).json["status"] == "OK"
    assert client.state(label) == "ABORTED"
    assert client.commit(label).status == "FAILED"
    assert client.send("POST", url).json["msg"] == f"running transaction not found, label={label}"


def test_cancel_takes_the_label_as_a_parameter_only(client: Client) -> None:
    """Wire contract 6.3 [R: the state of labels]."""
    reply = client.send("POST", f"{client.server.load_url}/api/{client.server.database}/{client.begin()}/_cancel")
    assert (reply.json["status"], reply.json["msg"]) == ("FAILED", "No label selected.")


def test_cancel_does_not_reach_an_unregistered_transaction(client: Client) -> None:
    """Wire contract 6.3 [R: cancel by HTTP]."""
    label = client.begin()
    url = f"{client.server.load_url}/api/{client.server.database}/any/_cancel?label={label}"
    reply = client.send("POST", url)
    assert reply.json["status"] == "FAILED"
    assert reply.json["msg"] == f"transaction not found: {label}"
    assert client.rollback(label).ok


def test_loads_lists_unfinished_tables_of_a_label(client: Client) -> None:
    """Wire contract 6.5: a take-over lists one row for each (label, table), not FINISHED and not CANCELLED."""
    first, second, label = client.table(), client.table(), client.begin()
    client.loaded(label, first, ONE_ROW)
    client.loaded(label, second, ONE_ROW)
    loads = client.loads(label)
    assert loads.keys() == {first, second}
    assert {row["STATE"] for row in loads.values()} <= {"BEGIN", "BEFORE_LOAD", "LOADING", "PREPARING", "PREPARED"}


def test_loads_counts_rows_per_table(client: Client) -> None:
    """Wire contract 6.5."""
    first, second = client.table(), client.table()
    loads = client.loads(client.committed((first, ONE_ROW), (second, b'{"id": 1}{"id": 2}')))
    assert {table: int(row["SINK_ROWS"]) for table, row in loads.items()} == {first: 1, second: 2}
    assert {row["STATE"] for row in loads.values()} <= {"FINISHED", "PREPARING"}


def test_loads_has_no_column_for_the_transaction(client: Client) -> None:
    """Wire contract 6.5, 10.6: 26 columns, the transaction's number inside RUNTIME_DETAILS."""
    client.committed((client.table(), ONE_ROW))
    assert len(client.server.sql("SELECT * FROM information_schema.loads LIMIT 1")[0]) == 26
    assert client.server.sql("SELECT RUNTIME_DETAILS FROM information_schema.loads LIMIT 1")
    with pytest.raises(pymysql.err.MySQLError):
        client.server.sql("SELECT TXN_ID FROM information_schema.loads LIMIT 1")


def test_the_take_overs_query_lists_an_open_label(client: Client) -> None:
    """Wire contract 6.5: LIKE with an escaped underscore; a label without a load has no row."""
    run = fresh("job")
    open_label, open_label_too, empty = f"{run}-0", f"{run.replace('_', 'x')}-0", f"{run}-1"
    for label in (open_label, open_label_too, empty):
        client.begin(label)
    for label in (open_label, open_label_too):
        client.loaded(label, client.table(), ONE_ROW)
    pattern = run.replace("_", "\\\\_")
    rows = client.server.sql(
        f"SELECT DISTINCT LABEL FROM information_schema.loads WHERE DB_NAME = '{client.server.database}' "
        f"AND LABEL LIKE '{pattern}-%' AND STATE NOT IN ('FINISHED', 'CANCELLED')"
    )
    assert rows == [(open_label,)]
    for label in (open_label, open_label_too, empty):
        assert client.rollback(label).ok


def test_finished_transactions_can_be_shown(client: Client) -> None:
    """Wire contract 6.5."""
    label = client.committed((client.table(), ONE_ROW))
    rows = client.server.sql(f"SHOW PROC '/transactions/{client.server.database}/finished'")
    assert label in [row[1] for row in rows]


def test_loads_counts_the_filtered_rows_of_a_failed_commit(client: Client) -> None:
    """Wire contract 6.5, 7.5: a good table and one whose only row is rejected. B says nothing of rows in its reply."""
    good, bad, label = client.table(), client.table("id INT NOT NULL, n INT"), client.begin()
    client.loaded(label, good, ONE_ROW)
    client.loaded(label, bad, b'{"id": "not_an_int"}', strict_mode="true", max_filter_ratio="1")
    reply = client.commit(label)
    assert reply.status == "FAILED"
    assert ("tracking_url:" in reply.message) == (client.server.generation == "C")
    row = client.loads(label)[bad]
    assert (row["STATE"], int(row["SINK_ROWS"]), int(row["FILTERED_ROWS"])) == ("CANCELLED", 0, 1)
    assert client.loads(label)[good]["STATE"] == "CANCELLED"
