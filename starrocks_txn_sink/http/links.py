"""The connections of each thread, kept alive, and a single exchange on them: bytes out, status and bytes back.

An adapter of `requests` does it, without a `requests.Session` around it: cookies, hooks, proxies and the preparation of
the next request after a redirect, none of which is used here, were 28 % of a small load's processor time.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import requests
import urllib3.exceptions

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.errors import NotSent, OptionError
from starrocks_txn_sink.http.body import Pieces
from starrocks_txn_sink.http.bounded import BoundedAdapter, Slot, Waiting
from starrocks_txn_sink.http.failures import failure_of
from starrocks_txn_sink.http.replies import LIMIT
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.addresses import Address


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back over HTTP, not yet understood. `body` ends one byte after the limit of replies at most; `whole`
    is false when the peer answered, and closed its side, before it had the whole request."""

    status: int
    location: str | None
    body: bytes
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Exchange:
    """One HTTP request to one address. `step` names it in errors; `reply_seconds` bounds the wait for the reply."""

    step: str
    method: str
    address: Address
    path: str
    headers: Mapping[str, bytes] = field(repr=False)
    body: Pieces | None
    deadline: Deadline
    reply_seconds: float


class Link:
    """The connections of one thread. Nothing of the environment is used: no proxies, no netrc, no cookies."""

    def __init__(self, options: SinkOptions) -> None:
        self._slot = Slot()
        self._connect_timeout = options.connect_timeout
        self._verify: bool | str = options.tls_ca or options.tls_verify
        self._certificate = _certificate(options)
        self._adapter = BoundedAdapter(self._slot)

    def perform(self, exchange: Exchange) -> Answer:
        """Send one request and read its answer, never following a redirect.

        Raises NotSent, ReplyLost or BadReply, and DeadlineExceeded when no time was left to begin with.
        """
        connect = exchange.deadline.bounded(self._connect_timeout, exchange.step)
        reply = min(exchange.reply_seconds, exchange.deadline.remaining()) or connect
        waiting = Waiting(exchange.deadline, exchange.reply_seconds)
        self._slot.waiting = waiting
        try:
            with self._adapter.send(
                _prepared(exchange),
                stream=True,
                timeout=(connect, reply),
                verify=self._verify,
                cert=self._certificate,
            ) as response:
                received = _read(response)
        except (OSError, urllib3.exceptions.HTTPError) as error:
            raise failure_of(error, waiting, exchange.address, exchange.step) from None
        whole = exchange.body is None or exchange.body.complete or waiting.sent == 0
        if not whole:
            self._adapter.close()  # the rest of this body must never be taken for the next request
        return Answer(response.status_code, response.headers.get("Location"), received, whole)

    def close(self) -> None:
        self._adapter.close()


class Links:
    """A link for each thread that asks for one."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._all: weakref.WeakSet[Link] = weakref.WeakSet()  # a thread that ends takes its link along
        self._own = threading.local()
        self._closed = False

    def mine(self) -> Link:
        """The calling thread's link. Raises NotSent after `close`."""
        with self._lock:
            if self._closed:
                raise NotSent("The transport is closed.", hint="Make a new one.")
            link: Link | None = getattr(self._own, "link", None)
            if link is None:
                link = self._own.link = Link(self._options)
                self._all.add(link)
            return link

    def close(self) -> None:
        with self._lock:
            self._closed = True
            links = list(self._all)
        for link in links:
            link.close()


def _certificate(options: SinkOptions) -> str | tuple[str, str] | None:
    """The client's certificate as `requests` takes it. Raises OptionError when one of the TLS files is missing."""
    for name in ("tls_ca", "tls_certificate", "tls_key"):
        place: str | None = getattr(options, name)
        if place is not None and not Path(place).exists():
            raise OptionError(
                f"{name} names a file that does not exist.", hint="Put it on every executor.", option=name
            )
    if options.tls_certificate is None or options.tls_key is None:
        return options.tls_certificate
    return options.tls_certificate, options.tls_key


def _prepared(exchange: Exchange) -> requests.PreparedRequest:
    """The request as an adapter takes it, with the headers of the exchange and those of its body alone."""
    made = requests.PreparedRequest()
    made.prepare_method(exchange.method)
    made.prepare_url(f"{exchange.address}{exchange.path}", None)
    made.prepare_headers(exchange.headers)
    made.prepare_cookies({})  # an adapter asks for the jar
    made.prepare_body(exchange.body if exchange.body is not None and len(exchange.body) else None, None)
    return made


def _read(response: requests.Response) -> bytes:
    """The body as it came, up to one byte over the limit of replies; one that the peer cut short is an error."""
    body: bytes = response.raw.read(LIMIT + 1, decode_content=False)
    missing = getattr(response.raw, "length_remaining", None)
    if missing and len(body) <= LIMIT:
        raise urllib3.exceptions.IncompleteRead(len(body), missing)
    return body
