"""Reading replies: every answer becomes a Reply or a typed error, and no answer anything else."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from starrocks_txn_sink.errors import AuthenticationFailed, BadReply, HttpRefused, StarRocksSinkError
from starrocks_txn_sink.http.connection import REPLY_LIMIT
from starrocks_txn_sink.http.transport import read_load_state, read_reply
from starrocks_txn_sink.protocol.wire import LabelState, Reply, Status


def encoded(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def test_a_commit_reply_is_read_by_name() -> None:
    body = encoded(
        Label="job-1", Status="OK", TxnId=9007199254740993, ChannelId=0, Message="", **{"Prepared Channel Num": 1}
    )
    assert read_reply(200, body) == Reply(Status.OK, "", "job-1", 9007199254740993)


def test_a_load_reply_has_its_bytes() -> None:
    body = b'{\n    "Status": "OK",\n    "Message": "",\n    "Label": "l",\n    "TxnId": 3,\n    "LoadBytes": 12}'
    assert read_reply(200, body) == Reply(Status.OK, "", "l", 3)


def test_keys_and_status_are_matched_without_regard_to_case() -> None:
    body = encoded(status="label_already_exists", MESSAGE="m", txnID="17", existingjobstatus="COMMITED")
    expected = Reply(Status.LABEL_ALREADY_EXISTS, "m", txn_id=17)
    assert read_reply(200, body) == expected


@pytest.mark.parametrize("status", list(Status))
def test_every_status_of_the_contract_is_known(status: Status) -> None:
    assert read_reply(200, encoded(Status=status.value)).status is status


@pytest.mark.parametrize("state", list(LabelState))
def test_every_label_state_is_known(state: LabelState) -> None:
    reply = read_load_state(200, encoded(state=state.value, reason="", status="OK", code="0", msg="Success"))
    assert (reply.status, reply.state, reply.message) == (Status.OK, state, "Success")


def test_a_refused_question_for_the_state_has_a_message_and_no_state() -> None:
    body = encoded(
        status="FAILED", code="1", msg="unknown database, database=D", message="unknown database, database=D"
    )
    assert read_load_state(200, body) == Reply(Status.FAILED, "unknown database, database=D")


@pytest.mark.parametrize(
    ("http_status", "body", "message"),
    [
        (200, b"", "an empty body"),
        (200, b"  \n", "an empty body"),
        (200, b"<html><head><title>502 Bad\nGateway</title>", "HTML page titled '502 Bad Gateway'"),
        (200, b"<!doctype html>", "an HTML page"),
        (200, b'{"Status": "OK", "Mess', "broken or truncated JSON"),
        (200, b"OK", "plain text"),
        (200, b"\x00\xff\x10", "binary data"),
        (200, b"[1]", "is list instead of an object"),
        (200, b"null", "is NoneType instead of an object"),
        (200, b"{}", "without a Status"),
        (200, b'{"Status": 1}', "without a Status"),
        (200, b'{"Status": "Success"}', "unknown Status, saying 'Success'"),
        (200, b'{"Status": "OK", "Message": []}', "message that is list instead of text"),
        (200, b'{"Status": "OK", "TxnId": true}', "txnid that is bool instead of a number"),
        (200, b'{"Status": "OK", "TxnId": "x1"}', "txnid that is str instead of a number"),
        (200, b'{"Status": "OK", "TxnId": 1.5}', "txnid that is float instead of a number"),
        (500, b'{"status":"FAILED","code":"1","msg":"index 3 out of bounds"}', "saying 'index 3 out of bounds'"),
        (429, b"Slow down", "HTTP 429 with plain text"),
        (204, b"", "HTTP 204 with an empty body"),
        (503, b'{"Status": "OK"}', "HTTP 503"),
        (200, b'{"Status": "OK", "Message": "' + b"x" * REPLY_LIMIT + b'"}', f"more than {REPLY_LIMIT} bytes"),
    ],
)
def test_what_is_no_reply_says_what_it_is(http_status: int, body: bytes, message: str) -> None:
    with pytest.raises(BadReply, match=message) as failure:
        read_reply(http_status, body)
    assert failure.value.context["status"] == http_status


@pytest.mark.parametrize(
    "body", [b'{"status":"OK"}', b'{"status":"OK","state":"SLEEPING"}', b'{"status":"OK","state":3}']
)
def test_a_state_that_is_missing_or_unknown(body: bytes) -> None:
    with pytest.raises(BadReply, match="without a known state"):
        read_load_state(200, body)


# Every status from 300 on that the servers or what stands before them may give: what it means for another try.
_AGAIN = (307, 408, 421, 425, 429, 500, 501, 502, 503, 504, 507, 529)
_FINAL = (300, 301, 302, 303, 304, 308, 400, 402, 403, 404, 405, 406, 409, 410, 411, 413, 414, 415, 417, 422, 426, 431)


@pytest.mark.parametrize(("status", "again"), [(n, True) for n in _AGAIN] + [(n, False) for n in _FINAL])
@pytest.mark.parametrize(
    "body", [b"<html><title>no</title>", b'{"status":"FAILED","msg":"no"}', b'{"Status":"OK"}', b""]
)
@pytest.mark.parametrize("read", [read_reply, read_load_state])
def test_only_a_status_that_may_pass_is_worth_another_try(
    read: Callable[[int, bytes], Reply], status: int, again: bool, body: bytes
) -> None:
    with pytest.raises(StarRocksSinkError) as failure:
        read(status, body)
    assert type(failure.value) is (BadReply if again else HttpRefused)
    assert failure.value.retryable is again
    assert failure.value.context["status"] == status
    assert failure.value.advice.endswith(".")


@pytest.mark.parametrize(
    ("status", "advice"),
    [(302, "to the frontends themselves"), (403, "forbids"), (404, "8030"), (405, "8030"), (413, "chunk_bytes")],
)
def test_a_final_status_says_what_to_do(status: int, advice: str) -> None:
    with pytest.raises(HttpRefused, match=advice):
        read_reply(status, b"")


def test_unauthorized_is_its_own_error() -> None:
    with pytest.raises(AuthenticationFailed, match="Check username and password"):
        read_reply(401, b'{"status":"FAILED","code":"1","msg":"Access denied for root@10.0.0.1"}')


def test_excerpts_are_short_and_harmless() -> None:
    body = encoded(Status="bad\x1b[31m\r\n" + "y" * 500)
    with pytest.raises(BadReply) as failure:
        read_reply(200, body)
    assert len(str(failure.value)) < 320
    assert str(failure.value).isprintable()
    text = b"user=root password=geheim and a row: Alice"
    with pytest.raises(BadReply) as failure:
        read_reply(200, text)
    assert "geheim" not in str(failure.value)
    assert "Alice" not in str(failure.value)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_KEYS = st.sampled_from(
    ["Status", "status", "Message", "msg", "Label", "TxnId", "LoadBytes", "ExistingJobStatus", "state"]
)
_OBJECTS = st.dictionaries(_KEYS, st.sampled_from(["OK", "FAILED", "VISIBLE", 5, ""]) | _JSON, max_size=9)


@given(
    st.sampled_from([200, 200, 200, 204, 301, 307, 400, 401, 403, 404, 500, 503]) | st.integers(100, 599),
    st.binary(max_size=200)
    | _OBJECTS.map(lambda value: json.dumps(value).encode())
    | _JSON.map(lambda value: json.dumps(value).encode())
    | st.builds(lambda value, cut: json.dumps(value).encode()[:cut], _OBJECTS, st.integers(0, 60)),
)
@example(200, b"[" * 5000)
@example(200, b'{"Status":"OK","TxnId":' + b"9" * 400 + b"}")
def test_any_bytes_become_a_reply_or_a_typed_error(http_status: int, body: bytes) -> None:
    for read in (read_reply, read_load_state):
        try:
            reply = read(http_status, body)
        except (BadReply, AuthenticationFailed, HttpRefused) as error:
            text = str(error)
        else:
            text = reply.status.value
            assert http_status == 200
            assert reply.txn_id is None or isinstance(reply.txn_id, int)
        assert text.isprintable()
