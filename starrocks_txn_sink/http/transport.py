"""`HttpTransport`: sends a protocol request to a frontend, follows redirects, and returns the reply.

Every operation starts at a frontend; a follower answers 307 with the leader's address. A load takes two steps
(wire contract 9): an empty PUT goes to the leader, whose 307 names a backend, and only the backend gets the body. The
HTTP library must not follow redirects: it would drop the credentials or send the body twice. After an answer to a body
that is not a whole OK the connection is closed: the backend may take the rest of the body for a request (2.5).

The password travels with every request, so the sink follows a redirect only to configured or allowed hosts
(`options.redirects`).

Repetition (wire contract 1.2, 2, 9): a request that had no effect for certain goes to the next address;
get_load_state, which changes nothing, also after a lost reply. A request with a possible effect is sent once. HTTP 400
on a connection that was used before says that the peer could not read what came before our request, or with it: the
request had no effect, and a new connection repairs it.

Header values are UTF-8, because names of databases and tables may hold any letter. A line break in a value would start
another header, so it is refused (wire contract 1.1).

Reply keys match in any case; unknown keys and the Content-Type are ignored. Anything that is not a reply of the
transaction interface becomes BadReply, or HttpRefused if a repetition would get the same answer. The error names the
kind of answer, and repeats at most 80 printable characters of an HTML title or a server message. StarRocks answers 200
except for a wrong password (401), a follower's redirect (307), an unknown path (404), its own failure (500) and what it
cannot read (400); any other status comes from a proxy or another service (wire contract 1.1, 2, 6, 7.2).
"""

import itertools
import random
import re
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from http import HTTPStatus
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, urlsplit

import orjson
from tenacity import RetryCallState, Retrying, retry_if_exception

from starrocks_txn_sink import errors
from starrocks_txn_sink.clock import Clock, Deadline, SystemClock
from starrocks_txn_sink.errors import StarRocksSinkError
from starrocks_txn_sink.http.connection import REPLY_LIMIT, BodyPieces, ConnectionsByThread, Exchange, HttpResponse
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.addresses import HOST_HINT, Address, parse_location
from starrocks_txn_sink.options.redirects import RedirectRules
from starrocks_txn_sink.protocol.refusals import BEING_PLANNED, OF_A_TASK
from starrocks_txn_sink.protocol.wire import LabelState, Operation, Reply, Request, Status


class Frontends:
    """The configured addresses and the leader, if known, by URL. Shared by all threads of a transport."""

    def __init__(self, configured: tuple[Address, ...]) -> None:
        self._configured = {address.url: address for address in configured}
        self._leader: dict[str, Address] = {}
        self._lock = Lock()

    def in_order(self) -> tuple[Address, ...]:
        """The leader first, if it is known, then the others as configured, those that did not answer last."""
        with self._lock:
            return tuple({**self._leader, **self._configured}.values())

    def includes(self, address: Address) -> bool:
        """Whether `address` is known to be a frontend; backends never are."""
        with self._lock:
            return address.url in self._configured or address.url in self._leader

    def remember_leader(self, address: Address) -> None:
        """Ask `address` first from now on: it has answered, or redirected a load to a backend."""
        with self._lock:
            self._leader = {address.url: address}

    def ask_last(self, address: Address) -> None:
        """Put `address` last: it accepted a request and did not answer, so it must not get all requests."""
        self.forget_leader(address)
        with self._lock:
            if address.url in self._configured:
                self._configured[address.url] = self._configured.pop(address.url)

    def forget_leader(self, address: Address) -> None:
        """Forget the leader if it is `address`: it was unreachable, or redirected a request."""
        with self._lock:
            self._leader.pop(address.url, None)


HOPS = 4
"""Most redirects of one request: follower → leader → backend, and reserve for a leader change in between."""

REDIRECT = 307


def redirect_target(rules: RedirectRules, location: str | None) -> Address:
    """The next address. Ignores the Location's path, query and user info: the original ones fit every server."""
    location_address = parse_location(location)
    if location_address is None:
        raise errors.BadReply("The server sent a redirect whose Location names no usable host.", hint=HOST_HINT)
    target = rules.rewrite(location_address)
    if not rules.allows(target):
        raise errors.RedirectRefused(
            f"The frontend redirected to {target}, which is neither a host of load_url nor allowed by redirect_hosts; "
            "the sink sent nothing there.",
            hint=f"If that server is yours, set {rules.option_line(target)}, or map it with redirect_map.",
        )
    return target


ROUNDS = 3
"""Tries of the whole list of frontends."""


class HttpTransport:
    """A `wire.Transport` over HTTP. Threads may share it; each has its own connections, kept alive between requests."""

    def __init__(
        self,
        options: SinkOptions,
        *,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        witness: Callable[[Exchange, HttpResponse], None] | None = None,
    ) -> None:
        self._options = options
        # Requests get the same few Locations, except get_load_state: its Locations contain the label.
        self._target_of = lru_cache(maxsize=64)(partial(redirect_target, options.redirect_rules))
        self._frontends = Frontends(options.frontends)
        self._connections = ConnectionsByThread(options)
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()
        self._authorization: str | None = None
        self._witness = witness  # sees every answer, from any thread

    def send(self, request: Request, deadline: Deadline) -> Reply:
        """Send `request` and return its reply; see `wire.Transport` for the errors."""
        try:
            return self._with_failover(request, BodyPieces(request.body), deadline)
        except StarRocksSinkError as error:
            error.context.setdefault("label", request.label)
            if request.table is not None:
                error.context.setdefault("table", request.table)
            raise

    def ask(self, request: Request, address: Address, deadline: Deadline) -> HttpResponse:
        """The answer of `address` to `request` without its body; follows no redirect and repeats nothing."""
        headers = self._headers(request)
        return self._perform(Exchange(request, address, headers, None, deadline, deadline.remaining()))

    def error_log(self, url: str, deadline: Deadline) -> str:
        """The log of rejected rows that a server's `url` names, its first MiB; "" if the backend has it no more.

        Raises RedirectRefused for a host that is not allowed, ReplyLost or NotSent without an answer. No credentials go
        along: a backend shows its logs to everybody (wire contract 5.10).
        """
        target, names = self._target_of(url), parse_qs(urlsplit(url).query).get("file", [])
        if not names:
            return ""
        nothing = Request(Operation.LOAD_STATE, self._options.database, "")
        headers = {"accept": b"*/*", "accept-encoding": b"identity", "user-agent": b"starrocks-txn-sink"}
        exchange = Exchange(nothing, target, headers, None, deadline, deadline.remaining(), log=names[0])
        answer = self._connections.for_this_thread().perform(exchange)
        return answer.body.decode(errors="replace") if answer.status == HTTPStatus.OK else ""

    def close(self) -> None:
        """Close the connections of all threads; later requests raise NotSent."""
        self._connections.close()

    def _with_failover(self, request: Request, body: BodyPieces, deadline: Deadline) -> Reply:
        headers = self._headers(request)
        addresses = self._frontends.in_order()
        retrying = Retrying(
            retry=retry_if_exception(partial(_may_repeat, request.operation)),
            stop=lambda state: state.attempt_number >= ROUNDS * len(addresses) or deadline.expired(),
            wait=partial(self._pause, len(addresses), deadline),
            sleep=self._clock.sleep,
            reraise=True,
        )
        limit = self._options.read_timeout
        exchanges = (Exchange(request, first, headers, None, deadline, limit) for first in itertools.cycle(addresses))
        return retrying(lambda: self._follow(next(exchanges), body))

    def _pause(self, addresses: int, deadline: Deadline, state: RetryCallState) -> float:
        """Seconds to wait: 0 before the next address, a growing, jittered pause before the list starts over."""
        finished, remainder = divmod(state.attempt_number, addresses)
        if remainder:
            return 0.0
        return min(self._rng.uniform(0.05, 0.1) * 4.0 ** (finished - 1), deadline.remaining())

    def _headers(self, request: Request) -> dict[str, bytes]:
        if self._authorization is None:
            self._authorization = basic_authorization(self._options.username, self._options.read_password())
        return headers_of(request, self._authorization)

    def _follow(self, exchange: Exchange, body: BodyPieces) -> Reply:
        """Make the exchange, follow its redirects, and return the final reply; only a backend gets `body`.

        Raises NotSent for a redirect loop, RedirectRefused for a host that is not allowed.
        """
        operation, first = exchange.request.operation, exchange.address
        target, sending = first, False
        question_address = first  # the last known frontend; after a load's redirect to a backend, this is the leader
        hops = {(first.url, False)}
        for _ in range(HOPS + 1):
            answer, asked = self._perform(replace(exchange, address=target, body=body if sending else None)), target
            is_taken = not sending
            try:
                if answer.status != REDIRECT:
                    reply = _read_answer(operation, answer, sending)
                    is_taken = is_taken or reply.status is Status.OK
                    self._frontends.remember_leader(question_address if sending else target)
                    return reply
                question_address, target = target, self._target_of(answer.location)
            except (errors.TransportError, errors.HttpRefused, errors.RedirectRefused) as error:
                is_taken = False
                error.context.setdefault("url", str(asked))
                raise
            finally:
                if not is_taken:
                    self._connections.for_this_thread().drop(asked)
            # Only a backend gets the body; frontends get an empty PUT.
            sending = operation is Operation.LOAD and not self._frontends.includes(target)
            if (target.url, sending) in hops:
                break
            hops.add((target.url, sending))
        self._frontends.forget_leader(first)
        raise errors.NotSent(
            f"The frontends redirect {operation.value} to each other; none of them accepted it.",
            hint="They may be electing a leader; if this lasts, check their state (SHOW FRONTENDS).",
            url=str(first),
        )

    def _perform(self, exchange: Exchange) -> HttpResponse:
        try:
            response = self._connections.for_this_thread().perform(exchange)
            if self._witness is not None:
                self._witness(exchange, response)
            return response
        except errors.NotSent:
            self._frontends.forget_leader(exchange.address)
            raise
        except errors.ReplyLost:
            self._frontends.ask_last(exchange.address)
            raise


def _read_answer(operation: Operation, answer: HttpResponse, sending: bool) -> Reply:
    if answer.status == _BAD_REQUEST and answer.reused:
        raise errors.NotSent(f"HTTP 400 came back on a connection that was used before {operation.value}.")
    read = read_load_state if operation is Operation.LOAD_STATE else read_reply
    reply = read(answer.status, answer.body)
    if operation is Operation.LOAD and reply.status is Status.OK and not sending:
        if BEING_PLANNED in reply.message:
            return replace(reply, status=Status.TXN_IN_PROCESSING)
        if reply.message.startswith(OF_A_TASK):
            raise errors.BadReply(
                f"The frontend answered a load with OK and named no backend: {_safe_excerpt(reply.message)!r}.",
                hint="The label has ended. The sink writes the rows again under a new label.",
            )
        raise errors.BadReply(
            "The empty PUT that asks for a backend returned OK: a proxy followed the redirect by itself and loaded "
            "an empty body.",
            hint="Set load_url to the frontends themselves, not to a proxy that follows redirects.",
        )
    if reply.status is Status.OK and not answer.whole:
        raise errors.ReplyLost(
            "The server answered the load with OK before its body was sent.",
            hint="Check the proxies between the sink and the backends.",
        )
    return reply


def _may_repeat(operation: Operation, error: BaseException) -> bool:
    """Whether `operation` may go to the next address after `error`: only if a repetition cannot act twice."""
    if operation is Operation.LOAD_STATE:
        return isinstance(error, (errors.NotSent, errors.ReplyLost, errors.BadReply))
    return isinstance(error, errors.NotSent)


# --- messages of the protocol ---

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_VALUE = re.compile(r"[^\s\x00-\x1f\x7f]([^\r\n\x00-\x08\x0b-\x1f\x7f]*[^\s\x00-\x1f\x7f])?")


def basic_authorization(username: str, password: str) -> str:
    """The value of `Authorization`; user and password as UTF-8."""
    return "Basic " + b64encode(f"{username}:{password}".encode()).decode("ascii")


def headers_of(request: Request, authorization: str) -> dict[str, bytes]:
    """All headers of a request except those of its body. Raises InputError for a value that cannot be a header."""
    header_values = {name.lower(): value for name, value in request.headers.items()}
    header_values.update(authorization=authorization, accept="*/*")
    header_values["accept-encoding"] = "identity"
    header_values["user-agent"] = "starrocks-txn-sink"
    if request.operation is not Operation.LOAD_STATE:
        header_values.update(db=request.database, label=request.label, transaction_type="multi")
    if request.table is not None:
        header_values["table"] = request.table
    return {name: _encode_header(name, value) for name, value in header_values.items()}


@lru_cache(maxsize=1024)  # the same properties in each load, and a few hundred tables
def _encode_header(name: str, value: str) -> bytes:
    if _NAME.fullmatch(name) is None:
        raise errors.InputError(
            f"{name[:40]!r} is not a valid HTTP header name.", hint="Check the stream-load properties."
        )
    if _VALUE.fullmatch(value) is None:
        raise errors.InputError(
            f"The value of the HTTP header {name} is empty, starts or ends with white space, or holds a line break.",
            hint="Check the names of database and tables, and the stream-load properties.",
        )
    return value.encode("utf-8")


_BAD_REQUEST = 400
_TRANSIENT_STATUSES = frozenset((307, 408, 421, 425, 429))  # below 500, but a repetition may get another answer
_WRONG_ADDRESS = "Check that load_url names StarRocks frontends (http_port, 8030 by default), and not another service."
_ADVICE = {
    _BAD_REQUEST: "Check the proxy between the sink and StarRocks: it rejects the request's headers or its label.",
    403: "Check the proxy between the sink and StarRocks: it forbids the request (StarRocks itself answers 401).",
    407: "A proxy requires a password. Set load_url to the frontends themselves: the sink uses no proxies.",
    411: "Check the proxy between the sink and StarRocks: it removed the Content-Length.",
    413: "Raise the body limit of the proxy between the sink and the backends, or lower chunk_bytes.",
    417: "Check the proxy between the sink and the backends: loads need Expect: 100-continue, which it refuses.",
    431: "Raise the header limit of the proxy between the sink and StarRocks.",
}
_REDIRECTED = (
    "Set load_url to the frontends themselves: they redirect with 307, and the sink follows no other redirect."
)


def read_reply(http_status: int, body: bytes) -> Reply:
    """Parse the reply to begin, load, commit or rollback. Raises AuthenticationFailed, BadReply or HttpRefused."""
    fields = _fields(http_status, body)
    return Reply(
        status=_status(fields, http_status),
        message=_text(fields, "message", http_status) or "",
        label=_text(fields, "label", http_status),
        txn_id=_number(fields, "txnid", http_status),
    )


def read_load_state(http_status: int, body: bytes) -> Reply:
    """Parse the reply to get_load_state; `state` is set if `status` is OK. Raises like `read_reply`."""
    fields = _fields(http_status, body)
    status = _status(fields, http_status)
    message = _text(fields, "message", http_status) or _text(fields, "msg", http_status) or ""
    if status is not Status.OK:
        return Reply(status=status, message=message)
    state = fields.get("state")
    if not isinstance(state, str) or state.upper() not in LabelState.__members__:
        raise _bad_reply(http_status, "a reply without a known state")
    return Reply(status=status, message=message, state=LabelState[state.upper()])


def _fields(http_status: int, body: bytes) -> dict[str, Any]:
    """The reply's JSON object with lower-case keys; among keys that differ in case only, the first wins."""
    if http_status == 401:
        raise _denied(body)
    if len(body) > REPLY_LIMIT:
        raise _bad_reply(http_status, f"more than {REPLY_LIMIT} bytes")
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise _bad_reply(http_status, _describe_body(body)) from None
    if not isinstance(parsed, dict):
        raise _bad_reply(http_status, f"JSON that is {type(parsed).__name__} instead of an object")
    fields: dict[str, Any] = {}
    for key, value in parsed.items():
        fields.setdefault(key.lower(), value)
    if http_status != 200:
        raise _bad_reply(http_status, "JSON", excerpt=fields.get("message") or fields.get("msg"))
    return fields


def _denied(body: bytes) -> errors.AuthenticationFailed:
    """The error for HTTP 401: a wrong password, or a privilege that the user lacks (wire contract 7.2)."""
    if b"privilege" not in body[:REPLY_LIMIT].lower():
        return errors.AuthenticationFailed("StarRocks rejected the user name or password (HTTP 401).", status=401)
    return errors.AuthenticationFailed(
        "StarRocks accepted the password, but the user lacks a privilege (HTTP 401).",
        hint="Grant INSERT on all tables of the database to the user.",
        status=401,
    )


def _status(fields: dict[str, Any], http_status: int) -> Status:
    status = fields.get("status")
    if not isinstance(status, str):
        raise _bad_reply(http_status, "JSON without a Status")
    try:
        return Status(status.upper())
    except ValueError:
        raise _bad_reply(http_status, "an unknown Status", excerpt=status) from None


def _text(fields: dict[str, Any], key: str, http_status: int) -> str | None:
    value = fields.get(key)
    if value is not None and not isinstance(value, str):
        raise _bad_reply(http_status, f"{key} that is {type(value).__name__} instead of text")
    return value


def _number(fields: dict[str, Any], key: str, http_status: int) -> int | None:
    value = fields.get(key)
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,19}", value):
        return int(value)
    if isinstance(value, bool) or (value is not None and not isinstance(value, int)):
        raise _bad_reply(http_status, f"{key} that is {type(value).__name__} instead of a number")
    return value


def _describe_body(body: bytes) -> str:
    """The kind of `body` by its first characters, for error messages."""
    start = body[:512].lstrip().lower()
    if not start:
        return "an empty body"
    if start.startswith(b"<"):
        title = re.search(rb"<title>(.{0,80})", body[:4096], re.IGNORECASE | re.DOTALL)
        return f"an HTML page{f' titled {_safe_excerpt(title[1])!r}' if title else ''}"
    if start.startswith((b"{", b"[")):
        return "broken or truncated JSON"
    return "plain text" if start.isascii() and b"\x00" not in start else "binary data"


def _safe_excerpt(text: bytes | str) -> str:
    """At most 80 printable ASCII characters of one line, up to the next tag."""
    decoded = text.decode("ascii", "replace") if isinstance(text, bytes) else text
    return re.sub(r"[^\x20-\x7e]+", " ", decoded.partition("<")[0])[:80].strip()


def _bad_reply(http_status: int, content: str, *, excerpt: object = None) -> StarRocksSinkError:
    excerpt_text = f", saying {_safe_excerpt(excerpt)!r}" if isinstance(excerpt, str) and excerpt else ""
    message = f"HTTP {http_status} with {content}{excerpt_text} came back."
    if not is_final(http_status):
        return errors.BadReply(message, status=http_status)
    advice = _REDIRECTED if http_status < 400 else _ADVICE.get(http_status, _WRONG_ADDRESS)
    return errors.HttpRefused(message, hint=advice, status=http_status)


def is_final(http_status: int) -> bool:
    """Whether a repetition would get the same status: 3xx and 4xx, except _TRANSIENT_STATUSES."""
    return 300 <= http_status < 500 and http_status not in _TRANSIENT_STATUSES
