"""What an exception of the HTTP library means: surely no effect, or effect unknown.

`NotSent` needs proof: the address could not be connected to, or the connection was made for this request and not one
byte of it went out. Everything else may have reached the server, a kept-alive connection that died among it. The
library's exceptions are not chained, because they hold the request with its credentials.
"""

from __future__ import annotations

import http.client

import requests
import urllib3.exceptions

from starrocks_txn_sink.errors import BadReply, NotSent, ReplyLost, TransportError
from starrocks_txn_sink.http.bounded import Waiting
from starrocks_txn_sink.options.addresses import Address


def failure_of(error: Exception, waiting: Waiting, address: Address, step: str) -> TransportError:
    """The typed error for `error`, raised by the HTTP library while `step` was asked of `address`."""
    chain = _chain(error)
    name = type(chain[-1]).__name__
    place = {"url": str(address)}
    if _never_connected(chain):
        return NotSent(f"No connection could be made for {step} ({name}).", **place)
    if waiting.sent == 0 and any(isinstance(one, urllib3.exceptions.SSLError) for one in chain):
        return NotSent(
            f"The TLS handshake for {step} failed ({name}).",
            hint="Check tls_ca, tls_certificate and tls_key, and that the port speaks TLS.",
            **place,
        )
    if waiting.sent == 0 and waiting.dialled:
        return NotSent(f"The new connection broke before {step} was sent ({name}).", **place)
    if any(isinstance(one, http.client.BadStatusLine) for one in chain) and not _disconnected(chain):
        return BadReply(f"What answered to {step} was not HTTP.", **place)
    return ReplyLost(
        f"{step} was sent at least in part, but its reply did not arrive ({name}).",
        hint="Whether it took effect is found out by asking for the label; check the network and the server's log.",
        **place,
    )


def _never_connected(chain: list[BaseException]) -> bool:
    kinds = (
        requests.exceptions.ConnectTimeout,
        requests.exceptions.InvalidURL,
        urllib3.exceptions.ConnectTimeoutError,  # also refused, unreachable and not resolved
    )
    return any(isinstance(one, kinds) for one in chain)


def _disconnected(chain: list[BaseException]) -> bool:
    return any(isinstance(one, http.client.RemoteDisconnected) for one in chain)


def _chain(error: BaseException) -> list[BaseException]:
    """`error` and what it was made of, outermost first: the libraries nest causes as arguments or as `reason`."""
    found: list[BaseException] = []
    current: object = error
    while isinstance(current, BaseException) and current not in found:
        found.append(current)
        inner = getattr(current, "reason", None)
        nested = [one for one in (inner, *reversed(current.args)) if isinstance(one, BaseException)]
        current = nested[0] if nested else current.__cause__ or current.__context__
    return found
