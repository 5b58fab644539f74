"""The schema registry as a client sees it: numbers, references, refusals, waiting, and nothing secret in errors."""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from starrocks_txn_sink.errors import AuthenticationFailed, InputError, OptionError, TransportError, UnknownSchema
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
            "/schemas/ids/3": {"schema": "<a/>", "schemaType": "XML"},
            "/schemas/ids/30": {"schema": '{"type":"object"}', "schemaType": "JSON"},
            "/schemas/ids/32": {"schema": 'syntax = "proto3";', "schemaType": "PROTOBUF"},
            "/schemas/ids/31": {"schema": '{"type":"struct"}', "schemaType": "KCONNECT"},
        }

    def __call__(self, caller: Caller, request: Got) -> None:
        reply = self.replies.get(request.path, (404, UNKNOWN))
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
        assert client.schema(1) == ("AVRO", '"string"', ())
    assert [request.path for request in peer.got] == ["/schemas/ids/1"]


def test_referred_schemas_come_before_those_that_refer(peer: Peer) -> None:
    assert SchemaRegistry(url=peer.url + "/").schema(2) == (
        "AVRO",
        '"Person"',
        (("City", '"City"'), ("Address", '"Address"')),
    )


def test_the_kind_of_a_schema(peer: Peer) -> None:
    assert SchemaRegistry(url=peer.url).schema(30) == ("JSON", '{"type":"object"}', ())
    assert SchemaRegistry(url=peer.url).schema(31) == ("KCONNECT", '{"type":"struct"}', ())
    assert SchemaRegistry(url=peer.url).schema(32) == ("PROTOBUF", 'syntax = "proto3";', ())


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("AVRO", '"string"'),
        ("AVRO", '["null","string"]'),
        ("AVRO", '{"type":"record","name":"R","fields":[]}'),
        ("AVRO", '{"type":{"type":"record","name":"R","fields":[]}}'),
        ("AVRO", '{"type":["null","string"]}'),
        ("JSON", '{"type":"object"}'),
        ("JSON", '{"type":["object","null"]}'),
        ("JSON", '{"oneOf":[{"type":"null"},{"type":"object"}]}'),
        ("KCONNECT", '{"type":"struct","fields":[]}'),
        ("PROTOBUF", 'syntax = "proto3";'),
    ],
)
def test_a_number_of_apicurio_s(peer: Peer, registry: Registry, kind: str, text: str) -> None:
    """Apicurio's own interface, which is beside Confluent's, gives the text alone."""
    own = "/apis/registry/v2/ids/globalIds/7"
    more = f"{own}/references" if kind == "PROTOBUF" else f"{own}?dereference=true"
    registry.replies[own] = text.encode()
    registry.replies[more] = b"[]" if kind == "PROTOBUF" else text.encode()
    assert SchemaRegistry(url=f"{peer.url}/apis/ccompat/v7").schema(7, apicurio=True) == (kind, text, ())
    assert [request.path for request in peer.got] == [own, more]


def test_files_of_protobuf_that_apicurio_has(peer: Peer, registry: Registry) -> None:
    """Apicurio does not put them into the text; a file that two others import is asked for once."""
    own = "/apis/registry/v2/ids/globalIds/7"
    b = {"name": "b.proto", "groupId": None, "artifactId": "b/b", "version": "1"}
    c = {"name": "shop/c.proto", "groupId": "shop", "artifactId": "c", "version": "2"}
    of_b = "/apis/registry/v2/groups/default/artifacts/b%2Fb/versions/1"
    of_c = "/apis/registry/v2/groups/shop/artifacts/c/versions/2"
    registry.replies |= {own: b"message A {}", of_b: b"message B {}", of_c: b"message C {}"}
    registry.replies |= {f"{own}/references": [b, c], f"{of_b}/references": [c], f"{of_c}/references": b"[]"}
    registry.replies = {
        path: json.dumps(reply).encode() if isinstance(reply, list) else reply
        for path, reply in registry.replies.items()
    }
    files = (("shop/c.proto", "message C {}"), ("b.proto", "message B {}"))
    client = SchemaRegistry(url=f"{peer.url}/apis/ccompat/v7")
    assert client.schema(7, apicurio=True) == ("PROTOBUF", "message A {}", files)


def test_what_apicurio_cannot_give_is_named(peer: Peer) -> None:
    apicurio = f"{peer.url}/apis/ccompat/v7"
    with pytest.raises(UnknownSchema, match="does not know schema 9"):
        SchemaRegistry(url=apicurio, wait=0.1).schema(9, apicurio=True)
    with pytest.raises(InputError, match="no address of Apicurio"):
        SchemaRegistry(url=peer.url).schema(10, apicurio=True)


def test_a_registry_that_knows_a_number_later_is_waited_for(peer: Peer, registry: Registry) -> None:
    registry.replies["/schemas/ids/9"] = [0, (503, {}), (404, UNKNOWN), {"schema": '"long"'}]
    assert SchemaRegistry(url=peer.url).schema(9) == ("AVRO", '"long"', ())
    assert len(peer.got) == 4


def test_nobody_waits_who_is_not_patient(peer: Peer) -> None:
    with pytest.raises(UnknownSchema, match="does not know schema 9"):
        SchemaRegistry(url=peer.url).schema(9, patient=False)
    assert len(peer.got) == 1


@pytest.mark.parametrize(
    ("number", "kind", "text"),
    [(7, UnknownSchema, "does not know schema 7"), (3, InputError, "is XML"), (4, TransportError, "HTTP 503")],
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


@pytest.mark.parametrize("references", ["a", ["a"], [{"name": "a", "version": 1}], {"name": "a"}])
@pytest.mark.parametrize("apicurio", [False, True])
def test_references_that_are_none_are_no_answer(
    peer: Peer, registry: Registry, references: Any, apicurio: bool
) -> None:
    own = "/apis/registry/v2/ids/globalIds/9"
    registry.replies |= {
        "/apis/ccompat/v7/schemas/ids/9": {"schema": "x", "references": references},
        own: b'syntax = "proto3";',
        f"{own}/references": json.dumps(references).encode(),
    }
    with pytest.raises(TransportError, match="references cannot be read"):
        SchemaRegistry(url=f"{peer.url}/apis/ccompat/v7", wait=0.1).schema(9, apicurio=apicurio)


@pytest.mark.parametrize(
    "reply",
    [
        {"error_code": 404, "message": "HTTP 404 Not Found"},
        {"error_code": 404, "message": "RESTEASY003210: Could not find resource", "name": "NotFoundException"},
        {"error_code": 0, "message": "RESTEASY003210: Could not find resource"},  # Apicurio 2.6 under ccompat
        [],
    ],
)
def test_a_path_that_the_server_does_not_have_is_no_answer(peer: Peer, registry: Registry, reply: Any) -> None:
    """Or each message would count as one whose schema was deleted."""
    registry.replies["/schemas/ids/5"] = (404, reply)
    with pytest.raises(TransportError, match="HTTP 404 without a schema"):
        SchemaRegistry(url=peer.url, wait=0.1).schema(5)
    own = {"error_code": 404, "name": "ArtifactNotFoundException", "message": "No artifact with ID '5' was found."}
    registry.replies["/schemas/ids/6"] = (404, own)
    with pytest.raises(UnknownSchema):
        SchemaRegistry(url=peer.url, wait=0.1).schema(6)


def test_a_page_of_another_server_is_no_answer(peer: Peer, registry: Registry) -> None:
    registry.replies["/schemas/ids/5"] = b"<html>"
    with pytest.raises(TransportError, match="no JSON"):
        SchemaRegistry(url=peer.url, wait=0.1).schema(5)


def test_no_registry_there() -> None:
    with Peer(Registry()) as closed_peer:
        url = closed_peer.url
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


def test_a_token(peer: Peer, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGISTRY_TOKEN", "a.b-c\n")  # as a file of a secret has it
    SchemaRegistry(url=peer.url, token_environment="REGISTRY_TOKEN").schema(1)
    assert peer.got[0].headers["authorization"] == "Bearer a.b-c"
    registry.replies["/schemas/ids/6"] = (403, {})
    client = SchemaRegistry(url=peer.url, token="secret-3")
    with pytest.raises(AuthenticationFailed, match="HTTP 403") as refused:
        client.schema(6)
    assert "secret-3" not in repr(client) + str(refused.value)
    with pytest.raises(TransportError) as wrong:
        SchemaRegistry(url=peer.url, token="secret\n-4", wait=0.1).schema(6)
    assert "-4" not in str(wrong.value)


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


@pytest.mark.parametrize("url", ["http://a:8081,http://b:8081", ["http://a:8081"]])
def test_a_list_of_addresses_is_refused_at_once(url: Any) -> None:
    with pytest.raises(OptionError, match=r"is a list.*Give one address"):
        SchemaRegistry(url=url)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"password": "a", "password_environment": "B"}, "two passwords"),
        ({"token": "a", "token_environment": "B"}, "two tokens"),
        ({"user": "a", "token": "b"}, "a user and a token"),
    ],
)
def test_secrets_that_exclude_each_other(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        SchemaRegistry(url="http://registry", **settings)
