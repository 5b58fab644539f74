"""`SchemaRegistry`: the schemas of messages, from a registry with Confluent's interface or Apicurio's."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, TypeVar
from urllib.parse import quote

import orjson
import requests
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential

from starrocks_txn_sink.clock import SystemClock
from starrocks_txn_sink.errors import AuthenticationFailed, InputError, OptionError, TransportError, UnknownSchema
from starrocks_txn_sink.public_names import suggests_arguments

_TIMEOUTS: Final = (5.0, 10.0)  # seconds, to connect and to read
_UNKNOWN: Final = 404
_LACKS: Final = (40401, 40402, 40403)
_AVRO, _PROTOBUF, _JSON_SCHEMA, _CONNECT = _KINDS = ("AVRO", "PROTOBUF", "JSON", "KCONNECT")  # as registries call them
_TYPES: Final = {"struct": _CONNECT, "object": _JSON_SCHEMA, None: _JSON_SCHEMA}  # of a choice there is no type
_Reply = TypeVar("_Reply")


class _NoAnswer(Exception):
    """The registry gave no schema yet: it does not answer, or a leader has not told its followers of a new number."""


@suggests_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaRegistry:
    """A registry that has the schemas of the messages: of Avro, Protobuf, JSON Schema, or Connect's own.

    A schema is asked for once in each Python process. The sink waits `wait` for a registry that does not answer, and
    for a number that it does not know yet.

    Args:
        url: The registry's address, with the path of Confluent's interface if it has one (`/apis/ccompat/v7` at
            Apicurio).
        user: The user name, or the API key of Confluent Cloud; None sends none.
        password: The password; never shown.
        password_environment: Environment variable with the password instead, on driver and executors.
        token: A bearer token instead of user and password; never shown.
        token_environment: Environment variable with the token instead, on driver and executors.
        ca: File with the certificates to trust, on driver and executors; None trusts the usual ones.
        certificate: File with the client's certificate and key.
        wait: Seconds.

    Raises:
        OptionError: The address is none, or the password or token is given twice.

    Example::

        from starrocks_txn_sink import DebeziumAssembly
        from starrocks_txn_sink.sources import SchemaRegistry

        registry = SchemaRegistry(url="https://registry:8081", user="reader", password_environment="REGISTRY_PASSWORD")
        assembly = DebeziumAssembly(registry=registry)
    """

    url: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    password_environment: str | None = None
    token: str | None = field(default=None, repr=False)
    token_environment: str | None = None
    ca: str | None = None
    certificate: str | None = None
    wait: float = 30.0

    def __post_init__(self) -> None:
        if not isinstance(self.url, str) or "," in self.url:
            raise OptionError(
                "The schema registry's url is a list.",
                hint="Give one address, as in https://registry:8081: all registries of one cluster know each schema. "
                "For failover put a load balancer, or a name of several hosts, in front of them.",
                option="url",
            )
        scheme, _, location = self.url.partition("://")
        if scheme not in ("http", "https") or not location or "@" in location.partition("/")[0]:
            raise OptionError(
                "The address of the schema registry is not http://host:port or https://host:port.",
                hint="Give user and password as arguments of SchemaRegistry, not in the address.",
                option="url",
            )
        for name in ("password", "token"):
            if getattr(self, name) is not None and getattr(self, f"{name}_environment") is not None:
                raise OptionError(
                    f"The schema registry has two {name}s.",
                    hint=f"Give {name} or {name}_environment.",
                    option=name,
                )
        if self.user is not None and (self.token, self.token_environment) != (None, None):
            raise OptionError(
                "The schema registry has a user and a token.",
                hint="Give user with password, or a token.",
                option="user",
            )

    def schema(
        self, number: int, *, apicurio: bool = False, patient: bool = True
    ) -> tuple[str, str, tuple[tuple[str, str], ...]]:
        """The kind and the text of the schema with this number, and the schemas that it refers to.

        Each of these has the name by which it is referred to, and its text; those come first that others refer to.

        `apicurio`: the number is a global one of Apicurio's own interface, which is beside Confluent's. Only a
        `patient` caller waits until the registry answers, and knows the number. Raises
        TransportError for a registry that does not answer, AuthenticationFailed, UnknownSchema for a number that it
        does not know, and InputError for a schema of another kind.
        """
        return _schema(self if patient else replace(self, wait=0.0), number, apicurio)

    def _get(self, url: str, description: str, read: Callable[[str], _Reply]) -> _Reply:
        """What `read` makes of the reply to a GET, as soon as there is one that it does not refuse with _NoAnswer."""
        retrying = Retrying(
            stop=stop_after_delay(self.wait),
            wait=wait_exponential(0.1, max=2.0),
            retry=retry_if_exception_type(_NoAnswer),
            sleep=SystemClock().sleep,
            reraise=True,
        )
        try:
            reply: _Reply = retrying(self._ask, url, description, read)
        except _Unknown:
            raise UnknownSchema(f"The schema registry {self.url} does not know {description}.") from None
        except _NoAnswer as error:
            raise TransportError(
                f"The schema registry {self.url} did not give {description} in {self.wait:g} s: {error}.",
                hint="Check the address, the network, and that the registry runs.",
            ) from None
        return reply

    def _ask(self, url: str, description: str, read: Callable[[str], _Reply]) -> _Reply:
        auth = self._auth()
        try:
            with requests.get(
                url,
                auth=auth,
                verify=self.ca or True,
                cert=self.certificate,
                timeout=_TIMEOUTS,
                allow_redirects=False,
            ) as reply:
                status, text = reply.status_code, reply.content.decode()
        except (requests.RequestException, OSError, ValueError) as error:  # a file of certificates, a header
            raise _NoAnswer(type(error).__name__) from None
        if status in (401, 403):
            raise AuthenticationFailed(
                f"The schema registry {self.url} refused to give {description} (HTTP {status}).",
                hint="Check user and password, or the token, of SchemaRegistry.",
            )
        if status == _UNKNOWN and _names_what_lacks(text):
            raise _Unknown
        if status != requests.codes.ok:
            raise _NoAnswer(f"HTTP {status} without a schema")
        return read(text)

    def _auth(self) -> Any:
        if self.token is not None or self.token_environment is not None:
            return _Bearer(self._secret("token").strip())  # a file of a secret may end a line
        if self.user is not None:
            return self.user.encode(), self._secret("password").encode()
        return _as_it_is  # with None requests would send what ~/.netrc has for this host

    def _secret(self, name: str) -> str:
        variable = getattr(self, f"{name}_environment")
        if variable is None:
            return getattr(self, name) or ""
        if variable not in os.environ:
            raise OptionError(
                f"{name}_environment names {variable}, which is not set.",
                hint="Set the variable for the driver and for every executor.",
                option=f"{name}_environment",
            )
        return os.environ[variable]


@dataclass(frozen=True, slots=True)
class _Bearer:
    """Sends a bearer token (RFC 6750)."""

    token: str = field(repr=False)

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self.token}"
        return request


def _as_it_is(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


class _Unknown(_NoAnswer):
    """The registry does not know a number."""


@lru_cache(maxsize=4096)
def _schema(registry: SchemaRegistry, number: int, apicurio: bool) -> tuple[str, str, tuple[tuple[str, str], ...]]:
    description = f"schema {number}"
    if apicurio:
        kind, text, references = _of_apicurio(registry, number, description)
    else:
        answer = registry._get(f"{registry.url.rstrip('/')}/schemas/ids/{number}", description, _described)
        kind, text, references = (
            answer.get("schemaType") or _AVRO,
            answer["schema"],
            tuple(_referred(registry, answer, set())),
        )
    if kind not in _KINDS:
        raise InputError(
            f"Schema {number} of the schema registry {registry.url} is {kind}, which is not read.",
            hint="Let the connector's converter write Avro, Protobuf or JSON.",
        )
    return kind, text, references


def _names_what_lacks(text: str) -> bool:
    """Whether a 404 is about a schema, and not about a path that the server does not have, which both answer in JSON.

    Confluent's interface has codes of its own for a subject, a version and a schema that lacks, Apicurio's own one the
    name of an error.
    """
    try:
        reply = orjson.loads(text)
    except ValueError:
        return False
    if not isinstance(reply, dict):
        return False
    return reply.get("error_code") in _LACKS or reply.get("name") not in (None, "NotFoundException")


def _read(text: str) -> Any:
    try:
        return orjson.loads(text)
    except ValueError:
        raise _NoAnswer("a reply that is no JSON") from None


def _described(text: str) -> dict[str, Any]:
    """A schema as Confluent's interface describes it."""
    reply = _read(text)
    if not isinstance(reply, dict) or not isinstance(reply.get("schema"), str):
        raise _NoAnswer("a reply without a schema")
    _check_references(reply.get("references") or [], "subject")
    return reply


def _check_references(references: object, identifier: str) -> None:
    """Raise _NoAnswer unless these are references with a name, an `identifier` and a version."""
    members = ("name", identifier, "version")
    if not isinstance(references, list) or not all(
        isinstance(reference, dict) and all(isinstance(reference.get(member), str | int) for member in members)
        for reference in references
    ):
        raise _NoAnswer("a reply whose references cannot be read")


def _of_apicurio(
    registry: SchemaRegistry, number: int, description: str
) -> tuple[str, str, tuple[tuple[str, str], ...]]:
    """A schema by Apicurio's own interface, which puts what Avro and JSON Schema refer to into their text."""
    address = _address_of_apicurio(registry, number)
    place = f"{address}/ids/globalIds/{number}"
    kind, text = registry._get(place, description, _by_its_text)
    if kind == _PROTOBUF:
        return kind, text, tuple(_files_of_apicurio(registry, address, place, description, set()))
    return *registry._get(f"{place}?dereference=true", description, _by_its_text), ()


def _files_of_apicurio(
    registry: SchemaRegistry, address: str, place: str, description: str, places_seen: set[str]
) -> list[tuple[str, str]]:
    files: list[tuple[str, str]] = []
    for reference in registry._get(f"{place}/references", f"what {description} refers to", _listed):
        names = (reference.get("groupId") or "default", str(reference["artifactId"]), str(reference["version"]))
        group, artifact, version = (quote(str(name), safe="") for name in names)
        referred = f"{address}/groups/{group}/artifacts/{artifact}/versions/{version}"
        if referred not in places_seen:
            places_seen.add(referred)
            about = f"version {names[2]} of {names[1]}"
            files += _files_of_apicurio(registry, address, referred, about, places_seen)
            files.append((str(reference["name"]), registry._get(referred, about, str)))
    return files


def _listed(text: str) -> list[dict[str, Any]]:
    reply = _read(text)
    _check_references(reply, "artifactId")
    references: list[dict[str, Any]] = reply
    return references


def _address_of_apicurio(registry: SchemaRegistry, number: int) -> str:
    server, path, _ = registry.url.partition("/apis/")
    if not path:
        raise InputError(
            f"Schema {number} has a number of Apicurio's own form, and {registry.url} is no address of Apicurio.",
            hint="Give SchemaRegistry the address that ends in /apis/ccompat/v7.",
        )
    return f"{server}/apis/registry/v2"


def _by_its_text(text: str) -> tuple[str, str]:
    """The kind of a schema of Apicurio's own interface, which does not say it; and the text."""
    try:
        schema = orjson.loads(text)
    except ValueError:
        return _PROTOBUF, text
    kind = schema.get("type") if isinstance(schema, dict) else ""
    if isinstance(kind, list):
        kind = "object" if "object" in kind else ""
    return (_AVRO if isinstance(kind, dict) else _TYPES.get(kind, _AVRO)), text


def _referred(
    registry: SchemaRegistry, answer: dict[str, Any], places_seen: set[tuple[str, str]]
) -> list[tuple[str, str]]:
    texts: list[tuple[str, str]] = []
    for reference in answer.get("references") or ():
        place = str(reference["subject"]), str(reference["version"])
        if place in places_seen:
            continue
        places_seen.add(place)
        subject, version = (quote(name, safe="") for name in place)
        url = f"{registry.url.rstrip('/')}/subjects/{subject}/versions/{version}"
        referred = registry._get(url, f"version {place[1]} of {place[0]}", _described)
        texts += [*_referred(registry, referred, places_seen), (str(reference["name"]), referred["schema"])]
    return texts
