"""The schema registry as a client sees it: numbers, references, refusals, waiting, and nothing secret in errors."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from starrocks_txn_sink.errors import AuthenticationFailed, InputError, OptionError, TransportError
from starrocks_txn_sink.http.registry import SchemaRegistry
from tests.support.http_peer import Caller, Got, Peer

UNKNOWN = {"error_code": 40403, "message": "Schema not found"}
PERSON = {"schema": '"Person"', "references": [{"name": "Address", "subject": "shop/address", "version": 2}]}
ADDRESS = {"schema": '"Address"', "references": [{"name": "City", "subject": "city", "version": 1}]}


class Registry:
    """Replies by path; a list has one after the other."""

    def __init__(self) -> None:
        self.replies: dict[str, Any] = {
            "/schemas/ids/1": {"schema": '"string"'},
            "/schemas/ids/2": PERSON,
            "/subjects/shop%2Faddress/versions/2": ADDRESS,
            "/subjects/city/versions/1": {"schema": '"City"'},
            "/schemas/ids/3": {"schema": "syntax", "schemaType": "PROTOBUF"},
        }

    def __call__(self, caller: Caller, got: Got) -> None:
        reply = self.replies.get(got.path, (404, UNKNOWN))
        if isinstance(reply, list):
            reply = reply.pop(0) if len(reply) > 1 else reply[0]
        if isinstance(reply, int):
            caller.reset()
        elif isinstance(reply, tuple):
            caller.answer(reply[1], reply[0])
        else:
            caller.answer(reply)


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def peer(registry: Registry) -> Iterator[Peer]:
    with Peer(registry) as peer:
        yield peer


def test_a_schema_is_asked_for_once(peer: Peer) -> None:
    for _ in range(2):
        client = pickle.loads(pickle.dumps(SchemaRegistry(url=peer.url)))
        assert client.schema(1) == ('"string"', ())
    assert [got.path for got in peer.got] == ["/schemas/ids/1"]


def test_referred_schemas_come_before_those_that_refer(peer: Peer) -> None:
    assert SchemaRegistry(url=peer.url + "/").schema(2) == ('"Person"', ('"City"', '"Address"'))


def test_a_registry_that_knows_a_number_later_is_waited_for(peer: Peer, registry: Registry) -> None:
    registry.replies["/schemas/ids/9"] = [0, (503, {}), (404, UNKNOWN), {"schema": '"long"'}]
    assert SchemaRegistry(url=peer.url).schema(9) == ('"long"', ())
    assert len(peer.got) == 4


@pytest.mark.parametrize(
    ("number", "kind", "text"),
    [(7, InputError, "does not know schema 7"), (3, InputError, "is PROTOBUF"), (4, TransportError, "HTTP 503")],
)
def test_what_cannot_be_read_is_named(
    peer: Peer, registry: Registry, number: int, kind: type[Exception], text: str
) -> None:
    registry.replies["/schemas/ids/4"] = (503, {})
    with pytest.raises(kind, match=text):
        SchemaRegistry(url=peer.url, wait=0.2).schema(number)


@pytest.mark.parametrize("reply", [{}, {"schema": None}, ["schema"]])
def test_a_reply_without_a_schema_is_no_answer(peer: Peer, registry: Registry, reply: Any) -> None:
    registry.replies["/schemas/ids/10"] = (200, reply)
    with pytest.raises(TransportError, match="without a schema"):
        SchemaRegistry(url=peer.url, wait=0.1).schema(10)


def test_a_page_of_another_server_is_no_answer(peer: Peer, registry: Registry) -> None:
    registry.replies["/schemas/ids/5"] = b"<html>"
    with pytest.raises(TransportError, match="JSON"):
        SchemaRegistry(url=peer.url, wait=0.1).schema(5)


def test_no_registry_there() -> None:
    with Peer(Registry()) as gone:
        url = gone.url
    with pytest.raises(TransportError, match=r"did not give schema 1 in .* ConnectionError"):
        SchemaRegistry(url=url, wait=0.1).schema(1)


def test_user_and_password(peer: Peer, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGISTRY_PASSWORD", "gehéim")
    client = SchemaRegistry(url=peer.url, user="reader", password_environment="REGISTRY_PASSWORD")
    client.schema(1)
    assert base64.b64decode(peer.got[0].headers["authorization"].split()[1]).decode() == "reader:gehéim"
    registry.replies["/schemas/ids/6"] = (401, {})
    client = SchemaRegistry(url=peer.url, user="reader", password="secret-1")
    with pytest.raises(AuthenticationFailed, match="HTTP 401") as refused:
        client.schema(6)
    assert "secret-1" not in repr(client) + str(refused.value)
    monkeypatch.delenv("REGISTRY_PASSWORD")
    with pytest.raises(OptionError, match="REGISTRY_PASSWORD"):
        SchemaRegistry(url=peer.url, user="reader", password_environment="REGISTRY_PASSWORD").schema(6)


def test_without_a_user_no_password_of_netrc_is_sent(
    peer: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "netrc"
    file.write_text("default login somebody password else\n")
    monkeypatch.setenv("NETRC", str(file))
    SchemaRegistry(url=peer.url).schema(1)
    assert "authorization" not in peer.got[0].headers


def test_a_redirect_is_not_followed(peer: Peer, registry: Registry) -> None:
    registry.replies["/schemas/ids/8"] = (302, {})
    with pytest.raises(TransportError, match="HTTP 302"):
        SchemaRegistry(url=peer.url, wait=0.1).schema(8)


@pytest.mark.parametrize("url", ["registry:8081", "ftp://registry", "http://", "http://reader:secret-2@registry"])
def test_wrong_addresses(url: str) -> None:
    with pytest.raises(OptionError, match="address") as wrong:
        SchemaRegistry(url=url)
    assert "secret-2" not in str(wrong.value)


def test_two_passwords() -> None:
    with pytest.raises(OptionError, match="two passwords"):
        SchemaRegistry(url="http://registry", password="a", password_environment="B")
