"""The query port: TLS, a password that no server can ask for, one deadline, and typed errors only."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.errors import (
    NoBackend,
    OptionError,
    QueryFailed,
    QueryRefused,
    RedirectRefused,
    StarRocksSinkError,
)
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol.ledger import ReadPositions
from starrocks_txn_sink.sink.session import advising
from starrocks_txn_sink.sql.connection import LeaderConnection, SqlConnection, SqlLedger
from tests.support.http_peer import unused_port
from tests.support.query_peer import END, OK, QueryPeer, Talk, auth_switch, error, greeting, result

PASSWORD = "SECRETPW-größe"
COLUMNS = ("Name", "IP", "QueryPort", "Role")


def options(url: str, **changes: Any) -> SinkOptions:
    settings: dict[str, Any] = {"load_url": "http://127.0.0.1:8030", "query_url": url, "password": PASSWORD} | changes
    return SinkOptions(database="shop", **settings)


def ask_leader(url: str, sql: str = "SELECT 1", seconds: float = 5.0, **changes: Any) -> list[tuple[Any, ...]]:
    sink_options = options(url, **({"find_leader": False} | changes))
    with closing(LeaderConnection(sink_options)) as connection:
        return connection.query(sql, (), Deadline.after(seconds, SystemClock()))


def usual(talk: Talk) -> None:
    talk.log_in()
    talk.serve({"SELECT 1": result(["1"], [["one"], [None]])})


def test_a_statement_over_a_plain_port() -> None:
    with QueryPeer(usual) as peer:
        assert ask_leader(peer.url) == [("one",), (None,)]
        assert PASSWORD.encode() not in peer.received


# --- the password ---


@pytest.mark.parametrize("plugin", ["mysql_clear_password", "dialog", "sha256_password", "caching_sha2_password"])
@pytest.mark.parametrize("at", ["switch", "greeting"])
def test_a_server_without_tls_never_gets_the_password_it_asks_for(plugin: str, at: str) -> None:
    answers: list[bytes] = []  # such as the wish for a key, with which the password would come next

    def ask_for_it(talk: Talk) -> None:
        talk.send(greeting(plugin if at == "greeting" else "mysql_native_password"))
        talk.read()
        talk.send(auth_switch(plugin, b"\x01Password: ") if at == "switch" else b"\x01\x04")
        while True:
            answers.append(talk.read())
            talk.send(b"\x01\x04")

    with QueryPeer(ask_for_it) as peer:
        with pytest.raises(StarRocksSinkError) as failure:
            ask_leader(peer.url)
        assert PASSWORD.encode() not in peer.received
        if at == "switch":
            assert isinstance(failure.value, QueryRefused)
            assert "query_tls=True" in str(failure.value)
        assert PASSWORD not in str(failure.value)
    assert answers == []


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate with its key, in one file."""
    if shutil.which("openssl") is None:
        pytest.skip("makes its certificate with openssl")
    folder = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", f"{folder}/key", "-out", f"{folder}/pem", "-days", "2"]
    subprocess.run(
        [*command, "-subj", "/CN=fe", "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True
    )
    certificate_file = folder / "both.pem"
    certificate_file.write_bytes((folder / "pem").read_bytes() + (folder / "key").read_bytes())
    return certificate_file


def secure(certificate: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    return context


def test_tls_is_on_by_default_with_https_and_checks_the_certificate(certificate: Path) -> None:
    def script(talk: Talk) -> None:
        talk.log_in(secure(certificate))
        talk.serve({"SELECT 1": result(["1"], [["one"]])})

    https = "https://127.0.0.1:8443"
    with QueryPeer(script) as peer:
        assert ask_leader(peer.url, load_url=https, tls_ca=str(certificate)) == [("one",)]
        assert ask_leader(peer.url, query_tls=True, tls_verify=False) == [("one",)]
        with pytest.raises(QueryFailed, match="TLS handshake"):
            ask_leader(peer.url, load_url=https)
        with pytest.raises(OptionError, match="tls_ca cannot be read"):
            ask_leader(peer.url, load_url=https, tls_ca="/nowhere.pem")


def test_a_clear_password_is_given_over_tls_only(certificate: Path) -> None:
    """LDAP users need it."""

    def script(talk: Talk) -> None:
        talk.send(greeting(tls=True))
        talk.read()
        talk.start_tls(secure(certificate))
        talk.read()
        talk.send(auth_switch("mysql_clear_password", b""))
        assert talk.read() == PASSWORD.encode() + b"\0"
        talk.send(OK)
        talk.serve()

    with QueryPeer(script) as peer:
        assert ask_leader(peer.url, load_url="https://127.0.0.1:8443", tls_ca=str(certificate)) == []


def test_a_port_without_tls_gets_nothing_when_tls_is_on() -> None:
    with QueryPeer(usual) as peer:
        with pytest.raises(QueryRefused, match=r"offers no TLS.*query_tls=False"):
            ask_leader(peer.url, load_url="https://127.0.0.1:8443")
        assert peer.received == b""


# --- the leader ---


def leads(host: str, port: int) -> Any:
    rows = [["a", host, str(port), "LEADER"], ["b", "127.0.0.1", "1", "FOLLOWER"]]

    def script(talk: Talk) -> None:
        talk.log_in()
        talk.serve({"SHOW FRONTENDS": result(COLUMNS, rows), "SELECT 1": result(["1"], [["asked"]])})

    return script


def test_the_sink_logs_in_at_no_leader_that_is_not_the_users() -> None:
    with QueryPeer(usual) as leader, QueryPeer(leads("127.0.0.66", leader.port)) as peer:
        with pytest.raises(RedirectRefused, match=r"127\.0\.0\.66.*redirect_hosts=\['127\.0\.0\.66'\]"):
            ask_leader(peer.url, find_leader=True)
        assert leader.connections == []
        rewrites = {f"127.0.0.66:{leader.port}": f"127.0.0.1:{leader.port}"}
        assert ask_leader(peer.url, find_leader=True, redirect_map=rewrites) == [("one",), (None,)]
    with QueryPeer(leads("127.0.0.66\\.example", 9030)) as peer, pytest.raises(QueryFailed, match="no host and port"):
        ask_leader(peer.url, find_leader=True, redirect_hosts="*")


def test_a_leader_under_its_address_is_the_one_that_was_asked_by_name() -> None:
    with QueryPeer(usual) as leader:
        talked = QueryPeer(lambda talk: leads("127.0.0.1", talked.port)(talk))
        with talked as peer:
            assert ask_leader(f"mysql://localhost:{peer.port}", find_leader=True) == [("asked",)]
            assert len(peer.connections) == 1
        assert leader.connections == []


# --- one deadline ---


@pytest.mark.parametrize("when", ["greeting", "rows"])
def test_a_server_that_drips_ends_at_the_deadline(when: str) -> None:
    def drip(talk: Talk) -> None:
        data = b"\x4a\x00\x00\x00" + greeting()
        if when == "rows":
            talk.log_in()
            for _ in range(2):  # SET NAMES; the statement
                talk.read()
                if _ == 0:
                    talk.send(OK)
            data = b"\xff\xff\x00\x01" + b"\x01" * 300
        for byte in data * 3:
            talk.sock.sendall(bytes([byte]))
            time.sleep(0.2)

    with QueryPeer(drip) as peer:
        started = time.monotonic()
        with pytest.raises(QueryFailed):
            ask_leader(peer.url, seconds=0.8, read_timeout=0.6)
        assert time.monotonic() - started < 10  # the greeting alone takes longer


# --- typed errors ---


GARBAGE = {
    "not mysql": [b"HTTP/1.1 400 Bad Request"],
    "short greeting": [b"\x0a8"],
    "no version": [b"\x0ax.y\x00" + bytes(40)],
    "bad plugin": [greeting()[:-6] + b"\xff\xfe\xff\xfe\x00"],
    "empty": [b""],
}


@pytest.mark.parametrize("name", GARBAGE)
def test_a_broken_greeting_is_a_typed_error(name: str) -> None:
    with QueryPeer(lambda talk: talk.send(*GARBAGE[name])) as peer:
        with pytest.raises(QueryFailed):
            ask_leader(peer.url)
        with pytest.raises(QueryFailed):
            SqlConnection(options(peer.url), options(peer.url).query_addresses[0])


ANSWERS = {
    "a file is asked for": [b"\xfb/etc/passwd"],
    "a row of another length": [*result(["a", "b"], [])[:-1], b"\x01x", END],
    "no columns": [b"\x02", b"\x00"],
    "bytes that are no UTF-8": [*result(["a"], [])[:-1], b"\x02\xff\xfe", END],
    "an error without number": [b"\xff"],
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_broken_answer_is_a_typed_error(name: str) -> None:
    def script(talk: Talk) -> None:
        talk.log_in()
        talk.serve({"SELECT 1": ANSWERS[name]})

    with QueryPeer(script) as peer:
        with pytest.raises(QueryFailed):
            ask_leader(peer.url)
        sink_options = options(peer.url)
        for read in ("rows", "excerpt"):
            connection = SqlConnection(sink_options, sink_options.query_addresses[0])
            with pytest.raises(QueryFailed):
                connection.rows("SELECT 1") if read == "rows" else connection.excerpt("SELECT 1", 5)
            connection.close()


@pytest.mark.parametrize("answer", [[OK], result(["x"], [["y"]]), result(COLUMNS, [["a", "h", "no", "LEADER"]] * 2)])
def test_a_strange_list_of_frontends_is_a_typed_error_or_none(answer: list[bytes]) -> None:
    def script(talk: Talk) -> None:
        talk.log_in()
        talk.serve({"SHOW FRONTENDS": answer})

    with QueryPeer(script) as peer, suppress(QueryFailed):
        assert ask_leader(peer.url, find_leader=True) == []


def test_only_the_tools_quote_the_server() -> None:
    def script(talk: Talk) -> None:
        talk.log_in()
        talk.serve({"SELECT 1": [error(1064, "near 'ROW-VALUE'")]})

    with QueryPeer(script) as peer:
        with pytest.raises(QueryRefused) as failure:
            ask_leader(peer.url)
        assert "ROW-VALUE" not in str(failure.value)
        assert failure.value.__cause__ is None
        sink_options = options(peer.url)
        with closing(SqlConnection(sink_options, sink_options.query_addresses[0])) as connection:
            with pytest.raises(QueryRefused, match="ROW-VALUE"):
                connection.rows("SELECT 1")
            assert connection.rows("SELECT 2") == []  # a refusal leaves the connection usable


@pytest.mark.parametrize(
    ("number", "cause", "remedy"),
    [
        (1045, "the user name or the password is wrong", "username and password"),
        (3162, "the user does not exist", "username"),
        (1049, "the database does not exist", "database"),
        (5501, "the database does not exist", "database"),
        (1142, "the user lacks a privilege", "Grant it"),
        (5203, "the user lacks a privilege", "Grant it"),
        (5502, "a table does not exist", "Create it"),
    ],
)
def test_a_refusal_names_its_cause_and_its_remedy(number: int, cause: str, remedy: str) -> None:
    def script(talk: Talk) -> None:
        talk.log_in()
        talk.serve({"SELECT 1": [error(number, "ROW-VALUE")]})

    with QueryPeer(script) as peer:
        with pytest.raises(QueryRefused) as failure:
            ask_leader(peer.url)
        with pytest.raises(QueryRefused) as advised, advising("Grant CREATE TABLE on the database."):
            ask_leader(peer.url)
        sink_options = options(peer.url)
        with (
            closing(SqlConnection(sink_options, sink_options.query_addresses[0])) as tool,
            pytest.raises(QueryRefused) as quoted,
        ):
            tool.rows("SELECT 1")
    assert cause in failure.value.message
    assert remedy in failure.value.advice
    assert (quoted.value.message, quoted.value.advice) == (f"ROW-VALUE ({number})", failure.value.advice)
    assert "ROW-VALUE" not in str(failure.value)
    assert ("CREATE TABLE" in advised.value.advice) == (number in (1142, 5203, 5502))


def test_a_denied_statement_names_the_missing_privilege() -> None:
    """Wire contract 7.8."""
    message = (
        "Access denied; you need (at least one of) the OPERATE OR NODE privilege(s) on SYSTEM for this operation. "
        "Please ask the admin to grant permission(s) or try activating existing roles using <set [default] role>."
    )

    def script(talk: Talk) -> None:
        talk.log_in()
        talk.serve({"SELECT 1": [error(5203, message)]})

    with QueryPeer(script) as peer, pytest.raises(QueryRefused, match="the user lacks OPERATE OR NODE on SYSTEM"):
        ask_leader(peer.url)


def test_a_passing_trouble_of_the_server_is_no_refusal() -> None:
    def script(talk: Talk) -> None:
        talk.log_in()
        talk.serve({"SELECT 1": [error(1064, "Memory of p exceed limit")]})

    with QueryPeer(script) as peer, pytest.raises(QueryFailed):
        ask_leader(peer.url)


NOT_FOUND = "Backend node not found. Check if any backend node is down.backend: "
DETAIL = "Getting analyzing error. Detail message: "


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (NOT_FOUND, "No backend is alive"),
        (f"{NOT_FOUND}[127.0.0.1 alive: false inBlacklist: true] ", "No backend is alive"),
        (f"{NOT_FOUND}[10.0.0.1 alive: true inBlacklist: true] ", "The frontend leaves out the backends that are"),
        (f"{DETAIL}Cluster has no available capacity.", "No backend is registered"),
        (
            "Table replication num should be less than or equal to the number of available backends. Current available "
            "backends: [], table=t9, replication_num=1, default_replication_num=1",
            "No backend is alive",
        ),
        (
            f"{DETAIL}Tablet lost replicas. Check if any backend is down or not. tablet_id: 10012, replicas: "
            "10001:127.0.0.1:DEAD,. Check quorum number failed(OlapTableSink): BeReplicaSize:0, quorum:1.",
            "The backends that hold a tablet are down",
        ),
    ],
)
def test_answers_for_want_of_a_backend_name_it_and_keep_the_connection(text: str, reason: str) -> None:
    """Wire contract 10.14."""

    def script(talk: Talk) -> None:
        talk.log_in()
        talk.serve({"SELECT 1": [error(1064, text)], "SELECT 2": result(["2"], [["2"]])})

    with QueryPeer(script) as peer, closing(SqlConnection.connect_any(options(peer.url))) as connection:
        with pytest.raises(NoBackend, match=reason) as failure:
            connection.rows("SELECT 1")
        assert "query_url" not in str(failure.value)
        assert connection.value("SELECT 2") == "2"
        assert len(peer.connections) == 1


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (5501, "Unknown database 'publishing'"),
        (1045, "Access denied for user 'timeout'@'10.0.0.1' (using password: YES)"),
        (5502, "Unknown table 'shop.too many'"),
        (1142, "Access denied; you need (at least one of) the SELECT privilege(s) on TABLE publish for this operation"),
        (1064, "Getting analyzing error. Detail message: Column 'timeout' cannot be resolved."),
    ],
)
def test_a_name_in_the_servers_words_does_not_make_a_refusal_pass(number: int, text: str) -> None:
    def script(talk: Talk) -> None:
        talk.log_in()
        talk.serve({"SELECT 1": [error(number, text)]})

    with QueryPeer(script) as peer, pytest.raises(QueryRefused):
        ask_leader(peer.url)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Failed to get scan range of tablet 10042, no queryable replica of 'ROW-VALUE'", QueryFailed),
        ("Getting analyzing error. Detail message: Column 'token' cannot be resolved.", QueryRefused),
        ("Getting syntax error at line 1, column 7.", QueryRefused),
    ],
)
def test_a_ledgers_question_that_the_server_cannot_answer_now_is_asked_again_with_its_words(
    text: str, kind: type[StarRocksSinkError]
) -> None:
    def script(talk: Talk) -> None:
        talk.log_in()
        while True:
            talk.send(OK if talk.read()[1:].startswith(b"SET ") else error(1064, text))

    with (
        QueryPeer(script) as peer,
        closing(LeaderConnection(options(peer.url, find_leader=False))) as leader,
        pytest.raises(kind) as failure,
    ):
        SqlLedger(leader, "shop").execute(ReadPositions("job"), Deadline.after(5, SystemClock()))
    assert text.split("'", 1)[0].strip().rstrip(".") in failure.value.message
    assert "ROW-VALUE" not in str(failure.value)


def test_a_query_port_that_never_answers_is_asked_last() -> None:
    def hang(talk: Talk) -> None:
        talk.read()

    def script(talk: Talk) -> None:
        talk.log_in()
        talk.serve({})

    with QueryPeer(hang) as silent, QueryPeer(script) as well:
        sink_options = options(f"{silent.url},{well.url.removeprefix('mysql://')}", find_leader=False, read_timeout=0.5)
        with closing(LeaderConnection(sink_options)) as connection:
            for _ in range(2):
                connection.query("SELECT 1", (), Deadline.after(20, SystemClock()))
                connection.close()
                assert len(silent.connections) == 1


def test_a_port_that_says_nothing_may_be_one_of_http() -> None:
    """A login that hangs later has been greeted by a query port, so nothing is said about ports."""

    def http(talk: Talk) -> None:
        talk.read()

    def hang(talk: Talk) -> None:
        talk.send(greeting())
        talk.read()
        talk.read()

    for script, named in ((http, True), (hang, False)):
        with QueryPeer(script) as peer, pytest.raises(QueryFailed) as failure:
            ask_leader(peer.url, seconds=0.8, read_timeout=0.3)
        assert ("says nothing, as a port of HTTP" in failure.value.message) is named
        assert ("names query_port" in failure.value.advice) is named
        assert failure.value.retryable


def test_nobody_there_and_an_unknown_host_are_reported_in_words() -> None:
    with pytest.raises(QueryFailed, match=r"query_url \(127\.0\.0\.1:\d+\).*nothing listens there"):
        ask_leader(f"mysql://127.0.0.1:{unused_port()}")
    with pytest.raises(QueryFailed, match="cannot be resolved"):
        ask_leader("mysql://no-such-host.invalid:9030")


def test_a_port_that_speaks_http_is_reported_in_words() -> None:
    def speak_http(talk: Talk) -> None:
        talk.sock.sendall(b"HTTP/1.1 200 OK\r\n\r\n<html>hello</html>")

    with (
        QueryPeer(speak_http) as peer,
        pytest.raises(QueryFailed, match=r"is not the MySQL protocol \(InternalError\)\."),
    ):
        ask_leader(peer.url)
