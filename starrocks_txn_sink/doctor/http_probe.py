"""Single requests to one server each. Redirects are not followed, because the doctor examines each of them."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from starrocks_txn_sink.clock import Clock, Deadline
from starrocks_txn_sink.http.connection import Answer, Exchange, Link
from starrocks_txn_sink.http.messages import METHODS, basic_authorization, headers_of, path_of
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.addresses import DEFAULT_PORTS, Address
from starrocks_txn_sink.wire import Operation, Request

REDIRECT = 307
_STEP_SECONDS = 30.0


class HttpProbe:
    """Sends one request to one server. Raises the errors of `http.links.Link.perform`."""

    def __init__(self, options: SinkOptions, clock: Clock) -> None:
        self._link = Link(options)
        self._clock = clock
        self._authorization = basic_authorization(options.username, options.read_password())

    def request(
        self,
        operation: Operation,
        address: Address,
        database: str,
        label: str,
        *,
        table: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request to `address`; a load has an empty body, so a 307 names the backend (wire contract 9)."""
        message = Request(operation, database, label, table, headers or {})
        exchange = Exchange(
            operation.value,
            METHODS[operation],
            address,
            path_of(message),
            headers_of(message, self._authorization),
            None,
            Deadline.after(_STEP_SECONDS, self._clock),
            _STEP_SECONDS,
        )
        return self._link.perform(exchange)

    def close(self) -> None:
        self._link.close()


def redirect_target(answer: Answer) -> Address | None:
    """Address in the Location header, before redirect_map applies; None if it is missing or unusable."""
    try:
        parts = urlsplit(answer.location or "")
        port = parts.port or DEFAULT_PORTS[parts.scheme]
    except (ValueError, KeyError):
        return None
    return Address(parts.scheme, parts.hostname, port) if parts.hostname else None
