"""Wire contract 1: endpoints, headers, authentication, redirects, bodies."""

from __future__ import annotations

import pytest

from tests.support.contract_client import Client, fresh, raw_connection, request_head
from tests.support.waiting import wait_until

PREFIX = "class com.starrocks.common.StarRocksException: "
ONE_ROW = b'{"id": 1, "v": "a"}'


@pytest.mark.parametrize("operation", ["begin", "BEGIN", "Begin"])
def test_an_operation_is_case_insensitive(client: Client, operation: str) -> None:
    """Wire contract 1.1 [R: begin]."""
    assert client.op(operation, fresh("l")).ok


@pytest.mark.parametrize("operation", ["begin", "prepare", "commit", "rollback"])
def test_only_loads_may_be_put(client: Client, operation: str) -> None:
    """Wire contract 1.1 [R: begin; bodies and headers]."""
    reply = client.op(operation, fresh("l"), method="PUT")
    assert (reply.code, reply.status) == (200, "FAILED")
    assert reply.message == "class com.starrocks.common.DdlException: Invalid request"


def test_no_operation_is_a_get(client: Client) -> None:
    """Wire contract 1.1 [R: begin]."""
    reply = client.send("GET", client.url("begin"), client.headers(fresh("l")))
    assert (reply.code, reply.headers["content-type"]) == (404, "text/html")


def test_an_unknown_operation_fails_with_the_java_class(client: Client) -> None:
    """Wire contract 1.1 [R: begin]."""
    reply = client.op("vanish", fresh("l"))
    assert (reply.code, reply.status) == (200, "FAILED")
    assert reply.message == f"{PREFIX}Unknown transaction operation: vanish"


@pytest.mark.parametrize("operation", ["begin", "load", "commit", "rollback"])
def test_every_operation_needs_a_database(client: Client, operation: str) -> None:
    """Wire contract 1.1 [R: begin]."""
    reply = client.send("POST", client.url(operation), {"label": fresh("l"), "transaction_type": "multi"})
    assert (reply.status, reply.message) == ("FAILED", f"{PREFIX}No database selected.")


@pytest.mark.parametrize("operation", ["begin", "load", "commit", "rollback"])
def test_every_operation_needs_a_label(client: Client, operation: str) -> None:
    """Wire contract 1.1 [R: begin]: labels are never made by the server."""
    reply = client.op(operation, "")
    assert reply.status == "FAILED"
    assert reply.message.lower() == f"{PREFIX}empty label.".lower()


@pytest.mark.parametrize("value", ["multi", "MULTI", "Multi"])
def test_transaction_type_is_case_insensitive(client: Client, value: str) -> None:
    """Wire contract 1.1 [R: begin]."""
    assert client.op("begin", fresh("l"), transaction_type=value).ok


def test_source_type_12_is_an_alias_of_multi(client: Client) -> None:
    """Wire contract 1.1 [R: begin]."""
    headers = {"db": client.server.database, "label": fresh("l"), "source_type": "12"}
    reply = client.send("POST", client.url("begin"), headers)
    assert reply.json == {"Status": "OK", "Message": ""}


@pytest.mark.parametrize("seconds", ["0", "-5", "999999999"])
def test_begin_takes_any_number_of_seconds(client: Client, seconds: str) -> None:
    """Wire contract 4.12 [R: begin]."""
    assert client.op("begin", fresh("l"), timeout=seconds).ok


def test_an_unknown_warehouse_fails_before_the_database_is_looked_up(client: Client) -> None:
    """Wire contract 1.1, 4.14 [R: begin]."""
    reply = client.op("begin", fresh("l"), warehouse="nowhere", db="no_such_db")
    assert reply.status == "FAILED"
    assert reply.message == "class com.starrocks.common.ErrorReportException: Warehouse name: nowhere not exist."


def test_a_frontend_says_what_its_answers_are(client: Client) -> None:
    """Wire contract 2.1 [R: begin]: content types."""
    label, table = client.begin(), client.table()
    answers = (client.load_state(label), client.probe(label, table), client.rollback(label))
    json, html = "application/json; charset=UTF-8", "text/html"
    assert [answer.headers["content-type"] for answer in answers] == [json, html, json]


def test_a_timeout_that_is_no_number_fails(client: Client) -> None:
    """Wire contract 1.1 [R: begin]."""
    reply = client.op("begin", fresh("l"), timeout="soon")
    assert reply.status == "FAILED"
    assert "NumberFormatException" in reply.message


@pytest.mark.parametrize("operation", ["begin", "commit", "rollback"])
def test_a_body_on_a_bodiless_operation_is_malformed(client: Client, operation: str) -> None:
    """Wire contract 1.1 [R: bodies and headers]: it is read as the tablets of a bypass write."""
    label = fresh("l")
    reply = client.op(operation, label, data=b"not json")
    java = "class com.starrocks.common.StarRocksHttpException: "
    assert (reply.status, reply.message) == ("FAILED", f"{java}Malformed json tablets, label is {label}")


def test_a_blank_body_is_no_body(client: Client) -> None:
    """Wire contract 1.1."""
    assert client.op("begin", fresh("l"), data=b" \n ").ok


@pytest.mark.parametrize("credentials", [("writer", "wrong"), ("nobody", "")])
def test_wrong_credentials_are_answered_401(client: Client, credentials: tuple[str, str]) -> None:
    """Wire contract 7.2 [R: auth]."""
    reply = client.send("POST", client.url("begin"), client.headers(fresh("l")), auth=credentials)
    assert reply.code == 401
    assert reply.headers["www-authenticate"] == 'Basic realm=""'
    assert reply.json["status"] == "FAILED"
    assert reply.json["msg"] == reply.json["message"]
    assert reply.json["msg"].startswith(f"Access denied for {credentials[0]}@")
    assert reply.headers["content-type"] == "text/html"


def test_no_credentials_are_answered_401(client: Client) -> None:
    """Wire contract 7.2 [R: auth]."""
    with raw_connection(client.server.load_url) as connection:
        connection.send(b"POST /api/transaction/begin HTTP/1.1\r\nHost: x\r\ndb: d\r\nlabel: l\r\n\r\n")
        assert connection.read_json()["message"] == "Need auth information."


def test_the_backend_asks_for_no_credentials(client: Client) -> None:
    """Wire contract 7.2: a client sends them all the same (1.1)."""
    label, table = client.begin(), client.table()
    location = client.probe(label, table).location
    headers = client.headers(label, table=table, format="json")
    with raw_connection(location) as connection:
        head = request_head(client, location, {**headers, "Content-Length": "2"})
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"authorization")]
        connection.send(b"\r\n".join(lines) + b"{}")
        assert connection.read_json()["Status"] == "OK"


@pytest.mark.parametrize(("method", "code", "message"), [("GET", 404, None), ("POST", 501, "Not implemented")])
def test_an_unknown_path_is_404_or_501(client: Client, method: str, code: int, message: str | None) -> None:
    """Wire contract 7.2 [R: begin]: HTML for a GET, the form of 6.1 for a POST."""
    reply = client.send(method, f"{client.server.load_url}/api/nopath")
    assert (reply.code, reply.json.get("msg"), reply.headers["content-type"]) == (code, message, "text/html")


def test_a_load_is_redirected_to_a_backend_without_credentials_in_the_url(client: Client) -> None:
    """Wire contract 1.1, 1.2, 9: 307, scheme http, no user info, same path."""
    reply = client.probe(client.begin(), client.table())
    assert reply.code == 307
    assert reply.location.startswith("http://")
    assert "@" not in reply.location
    assert reply.location.endswith("/api/transaction/load")
    assert not reply.location.startswith(client.server.load_url + "/")


def test_the_redirect_comes_before_any_body_byte_is_read(client: Client) -> None:
    """Wire contract 1.1: an expecting client is answered 307, not 100, by the frontend."""
    label, table = client.begin(), client.table()
    headers = client.headers(label, table=table, format="json")
    headers |= {"Expect": "100-continue", "Content-Length": "1000000"}
    with raw_connection(client.server.load_url) as connection:
        connection.send(request_head(client, client.url("load"), headers))
        assert connection.read_head()[0] == 307


def test_the_backend_says_100_continue_and_then_reads(client: Client) -> None:
    """Wire contract 1.1, 1.3."""
    label, table = client.begin(), client.table()
    location = client.probe(label, table).location
    headers = client.headers(label, table=table, format="json")
    headers |= {"Expect": "100-continue", "Content-Length": str(len(ONE_ROW))}
    with raw_connection(location) as connection:
        connection.send(request_head(client, location, headers))
        assert connection.read_head()[0] == 100
        assert connection.silent()
        connection.send(ONE_ROW)
        assert connection.read_json()["LoadBytes"] == len(ONE_ROW)
    assert client.commit(label).ok


def test_a_refused_expecting_load_is_answered_without_100(client: Client) -> None:
    """Wire contract 1.1: no body byte travels for a load that is refused."""
    label, table = client.begin(), client.table()
    location = client.probe(label, table).location
    headers = client.headers(fresh("l"), table=table, format="json")
    headers |= {"Expect": "100-continue", "Content-Length": "1000000"}
    with raw_connection(location) as connection:
        connection.send(request_head(client, location, headers))
        assert connection.read_json()["Status"] == "TXN_NOT_EXISTS"


def test_a_small_body_without_expect_reaches_the_redirect(client: Client) -> None:
    """Wire contract 1.1."""
    label, table = client.begin(), client.table()
    headers = client.headers(label, table=table, format="json")
    assert client.send("PUT", client.url("load"), headers, ONE_ROW).code == 307
    assert client.load(label, table, ONE_ROW).ok


def test_a_chunked_body_is_taken(client: Client) -> None:
    """Wire contract 5.9: chunked."""
    label, table = client.begin(), client.table()
    client.loaded(label, table, iter([ONE_ROW[:5], ONE_ROW[5:], b'{"id": 2}']))
    assert client.commit(label).ok
    assert [row[0] for row in client.rows(table)] == [1, 2]


def test_a_connection_serves_several_requests(client: Client) -> None:
    """Wire contract 1.1: HTTP/1.1 with keep-alive, also after a refusal and a redirect."""
    label, table = fresh("l"), client.table()
    with raw_connection(client.server.load_url) as connection:
        for operation, expected_code in (("commit", 200), ("begin", 200), ("load", 307), ("rollback", 200)):
            headers = client.headers(label, table=table, format="json") | {"Content-Length": "0"}
            connection.send(request_head(client, client.url(operation), headers, "POST"))
            code, answer = connection.read_head()
            assert code == expected_code
            connection.read_body(answer)


@pytest.mark.parametrize("operation", ["begin", "commit", "rollback", "prepare"])
def test_the_backend_refuses_what_belongs_to_the_frontend(client: Client, operation: str) -> None:
    """Wire contract 1.2."""
    label, table = client.begin(), client.table()
    backend = client.probe(label, table).location.removesuffix("load")
    reply = client.send("POST", backend + operation, client.headers(label))
    assert reply.status == "INVALID_ARGUMENT"
    assert reply.message == "Multi-statement transaction requests can only be sent to FE nodes, not BE nodes"


def test_half_a_body_is_glued_to_the_next_one(client: Client) -> None:
    """Wire contract 4.8: so the label cannot be used any more, and only its rollback is safe."""
    label, table = client.begin(), client.table()
    location = client.probe(label, table).location
    headers = client.headers(label, table=table, format="json") | {"Content-Length": "1000"}

    def half_is_in() -> bool:
        """The half body's request is served: a second one meets it, unless it was itself the second one."""
        with raw_connection(location) as connection:
            connection.send(request_head(client, location, headers) + b'{"i')
            while connection.silent():
                if client.load(label, table, b"").status == "TXN_IN_PROCESSING":
                    return True
            return False

    wait_until(half_is_in)
    replies = []

    def taken() -> bool:
        replies.append(client.load(label, table, b'd": 2}'))
        return replies[-1].status != "TXN_IN_PROCESSING"

    wait_until(taken)
    assert replies[-1].ok
    assert client.commit(label).ok
    assert client.rows(table) == [(2, None)]
