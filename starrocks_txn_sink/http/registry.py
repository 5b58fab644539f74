"""`SchemaRegistry`: the schemas of messages, from a registry with Confluent's interface (Apicurio has it too)."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote

import requests
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential

from starrocks_txn_sink.clock import SystemClock
from starrocks_txn_sink.errors import AuthenticationFailed, InputError, OptionError, TransportError
from starrocks_txn_sink.public_names import suggests_arguments

_TIMEOUTS: Final = (5.0, 10.0)  # seconds, to connect and to read
_UNKNOWN: Final = 404


class _NoAnswer(Exception):
    """The registry gave no schema yet: it does not answer, or a leader has not told its followers of a new number."""


@suggests_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaRegistry:
    """A registry that has the schemas of the messages, for formats that read Avro.

    A schema is asked for once in each Python process. The sink waits `wait` for a registry that does not answer, and
    for a number that it does not know yet.

    Args:
        url: The registry's address, with the path of Confluent's interface if it has one (`/apis/ccompat/v7` at
            Apicurio).
        user: The user name, or the API key of Confluent Cloud; None sends none.
        password: The password; never shown.
        password_environment: Environment variable with the password instead, on driver and executors.
        ca: File with the certificates to trust, on driver and executors; None trusts the usual ones.
        certificate: File with the client's certificate and key.
        wait: Seconds.

    Raises:
        OptionError: The address is none, or the password is given twice.

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
    ca: str | None = None
    certificate: str | None = None
    wait: float = 30.0

    def __post_init__(self) -> None:
        scheme, _, rest = self.url.partition("://")
        if scheme not in ("http", "https") or not rest or "@" in rest.partition("/")[0]:
            raise OptionError(
                "The address of the schema registry is not http://host:port or https://host:port.",
                hint="Give user and password as arguments of SchemaRegistry, not in the address.",
                option="url",
            )
        if self.password is not None and self.password_environment is not None:
            raise OptionError(
                "The schema registry has two passwords.",
                hint="Give password or password_environment.",
                option="password",
            )

    def schema(self, number: int) -> tuple[str, tuple[str, ...]]:
        """The Avro schema with this number, and the schemas that it refers to, those first that others refer to.

        Raises TransportError for a registry that does not answer, AuthenticationFailed, and InputError for a number
        that it does not know and for a schema of another kind.
        """
        return _schema(self, number)

    def _get(self, path: str, what: str) -> dict[str, Any]:
        """The reply to a GET, as soon as there is one."""
        retrying = Retrying(
            stop=stop_after_delay(self.wait),
            wait=wait_exponential(0.1, max=2.0),
            retry=retry_if_exception_type(_NoAnswer),
            sleep=SystemClock().sleep,
            reraise=True,
        )
        try:
            reply: dict[str, Any] = retrying(self._ask, path, what)
        except _Unknown:
            raise InputError(
                f"The schema registry {self.url} does not know {what}.",
                hint="Check that this is the registry of the connector's converter, and that the converter writes the "
                "schema's number in Confluent's form (docs/guides/debezium.md, \"Avro with a schema registry\").",
            ) from None
        except _NoAnswer as error:
            raise TransportError(
                f"The schema registry {self.url} did not give {what} in {self.wait:g} s: {error}.",
                hint="Check the address, the network, and that the registry runs.",
            ) from None
        return reply

    def _ask(self, path: str, what: str) -> dict[str, Any]:
        # With None requests would send what ~/.netrc has for this host.
        auth: Any = _as_it_is if self.user is None else (self.user.encode(), self._password().encode())
        try:
            with requests.get(
                self.url.rstrip("/") + path,
                auth=auth,
                verify=self.ca or True,
                cert=self.certificate,
                timeout=_TIMEOUTS,
                allow_redirects=False,
            ) as reply:
                status, text = reply.status_code, reply.text
                value = reply.json() if status == requests.codes.ok else None
        except (requests.RequestException, OSError) as error:  # OSError: a file of certificates
            raise _NoAnswer(type(error).__name__) from None
        if status in (401, 403):
            raise AuthenticationFailed(
                f"The schema registry {self.url} refused to give {what} (HTTP {status}).",
                hint="Check user and password of SchemaRegistry.",
            )
        if status == _UNKNOWN and '"error_code"' in text:
            raise _Unknown
        if not isinstance(value, dict) or not isinstance(value.get("schema"), str):
            raise _NoAnswer(f"HTTP {status} without a schema")
        return value

    def _password(self) -> str:
        if self.password_environment is None:
            return self.password or ""
        if self.password_environment not in os.environ:
            raise OptionError(
                f"password_environment names {self.password_environment}, which is not set.",
                hint="Set the variable for the driver and for every executor.",
                option="password_environment",
            )
        return os.environ[self.password_environment]


def _as_it_is(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


class _Unknown(_NoAnswer):
    """The registry does not know a number."""


@lru_cache(maxsize=4096)
def _schema(registry: SchemaRegistry, number: int) -> tuple[str, tuple[str, ...]]:
    found = registry._get(f"/schemas/ids/{number}", f"schema {number}")
    kind = found.get("schemaType", "AVRO")
    if kind != "AVRO":
        raise InputError(
            f"Schema {number} of the schema registry {registry.url} is {kind}, which is not read.",
            hint="Let the connector's converter write Avro, or JSON without a registry.",
        )
    return found["schema"], tuple(_referred(registry, found, set()))


def _referred(registry: SchemaRegistry, found: dict[str, Any], seen: set[tuple[str, int]]) -> list[str]:
    texts: list[str] = []
    for reference in found.get("references") or ():
        place = reference["subject"], int(reference["version"])
        if place in seen:
            continue
        seen.add(place)
        subject = quote(place[0], safe="")
        other = registry._get(f"/subjects/{subject}/versions/{place[1]}", f"version {place[1]} of {place[0]}")
        texts += [*_referred(registry, other, seen), other["schema"]]
    return texts
