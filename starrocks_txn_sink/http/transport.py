"""`HttpTransport`: sends a protocol request to a frontend, follows redirects, and returns the reply.

Every operation starts at a frontend; a follower answers 307 with the leader's address. A load takes two steps
(wire contract 9): an empty PUT goes to the leader, whose 307 names a backend, and only the backend gets the body. The
HTTP library must not follow redirects: it would drop the credentials or send the body twice.

The password travels with every request, so the sink follows a redirect only to configured or allowed hosts
(`options.addresses`).

Repetition (wire contract 1.2, 2, 9): a request that had no effect for certain goes to the next address;
get_load_state, which changes nothing, also after a lost reply. A request with a possible effect is sent once.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from threading import Lock

from tenacity import RetryCallState, Retrying, retry_if_exception

from starrocks_txn_sink.clock import Clock, Deadline, SystemClock
from starrocks_txn_sink.errors import BadReply, HttpRefused, NotSent, RedirectRefused, ReplyLost, StarRocksSinkError
from starrocks_txn_sink.http.connection import BodyPieces, ConnectionsByThread, Exchange, HttpResponse
from starrocks_txn_sink.http.messages import (
    METHODS,
    basic_authorization,
    headers_of,
    path_of,
    read_load_state,
    read_reply,
)
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.addresses import HOST_HINT, Address, RedirectRules, parse_location
from starrocks_txn_sink.protocol.wire import Operation, Reply, Request


class Frontends:
    """The configured addresses and the leader, if known. Shared by all threads of a transport."""

    def __init__(self, configured: tuple[Address, ...]) -> None:
        self._configured = configured
        self._leader: Address | None = None
        self._lock = Lock()

    def in_order(self) -> tuple[Address, ...]:
        with self._lock:
            leader = self._leader
        first = () if leader is None else (leader,)
        return (*first, *(address for address in self._configured if address != leader))

    def includes(self, address: Address) -> bool:
        """Whether `address` is known to be a frontend; backends never are."""
        with self._lock:
            return address in self._configured or address == self._leader

    def remember_leader(self, address: Address) -> None:
        with self._lock:
            self._leader = address

    def ask_last(self, address: Address) -> None:
        """Put `address` behind the others: it accepted a request and did not answer, so it must not get them all."""
        self.forget_leader(address)
        with self._lock:
            self._configured = tuple(sorted(self._configured, key=lambda each: each == address))

    def forget_leader(self, address: Address) -> None:
        """Forget the leader if it is `address`: it was unreachable, or redirected a request."""
        with self._lock:
            if self._leader == address:
                self._leader = None


HOPS = 4
"""Most redirects of one request: follower → leader → backend, and reserve for a leader change in between."""

REDIRECT = 307


@dataclass(frozen=True, slots=True)
class RedirectedRequest:
    """One request across its redirects. `perform` makes one exchange; `reply_seconds` bounds each wait for a reply."""

    request: Request
    body: BodyPieces
    headers: Mapping[str, bytes] = field(repr=False)
    deadline: Deadline
    reply_seconds: float
    rules: RedirectRules
    frontends: Frontends
    perform: Callable[[Exchange], HttpResponse]

    def send(self, first: Address) -> Reply:
        """Send the request to `first`, follow its redirects, and return the final reply.

        Raises NotSent for a redirect loop, RedirectRefused for a host that is not allowed.
        """
        target, sending = first, False
        asked = first  # the last known frontend; after a load's redirect to a backend, this is the leader
        seen = {(first, False)}
        for _ in range(HOPS + 1):
            answer = self._exchange(target, sending)
            if answer.status != REDIRECT:
                reply = self._read_answer(answer, target, sending)
                self.frontends.remember_leader(asked if sending else target)
                return reply
            asked = target
            target = self._redirect_target(answer, target)
            # Only a backend gets the body; frontends get an empty PUT.
            sending = self.request.operation is Operation.LOAD and not self.frontends.includes(target)
            if (target, sending) in seen:
                break
            seen.add((target, sending))
        self.frontends.forget_leader(first)
        raise NotSent(
            f"The frontends redirect {self.request.operation.value} to each other; none of them accepted it.",
            hint="They may be electing a leader; if this lasts, check their state (SHOW FRONTENDS).",
            url=str(first),
        )

    def _exchange(self, target: Address, sending: bool) -> HttpResponse:
        exchange = Exchange(
            step=self.request.operation.value,
            method=METHODS[self.request.operation],
            address=target,
            path=path_of(self.request),
            headers=self.headers,
            body=self.body if sending else None,
            deadline=self.deadline,
            reply_seconds=self.reply_seconds,
        )
        try:
            return self.perform(exchange)
        except NotSent:
            self.frontends.forget_leader(target)
            raise
        except ReplyLost:
            self.frontends.ask_last(target)
            raise

    def _redirect_target(self, answer: HttpResponse, asked: Address) -> Address:
        """The next address. Ignores the redirect's path, query and user info: the original ones fit every server."""
        named = parse_location(answer.location)
        if named is None:
            raise BadReply(
                "The server sent a redirect whose Location names no usable host.", hint=HOST_HINT, url=str(asked)
            )
        target = self.rules.rewrite(named)
        if not self.rules.allows(target):
            raise RedirectRefused(
                f"The frontend redirected to {target}, which is neither a host of load_url nor allowed by "
                "redirect_hosts; the sink sent nothing there.",
                hint=f"If that server is yours, set {self.rules.option_line(target)}, or map it with redirect_map.",
                url=str(asked),
            )
        return target

    def _read_answer(self, answer: HttpResponse, target: Address, sending: bool) -> Reply:
        read = read_load_state if self.request.operation is Operation.LOAD_STATE else read_reply
        try:
            reply = read(answer.status, answer.body)
        except (BadReply, HttpRefused) as error:
            error.context.setdefault("url", str(target))
            raise
        if self.request.operation is Operation.LOAD and reply.ok and not sending:
            raise BadReply(
                "The empty PUT that asks for a backend returned OK: a proxy followed the redirect by itself and loaded "
                "an empty body.",
                hint="Set load_url to the frontends themselves, not to a proxy that follows redirects.",
                url=str(target),
            )
        if reply.ok and not answer.whole:
            raise ReplyLost(
                "The server answered the load with OK before its body was sent.",
                hint="Check the proxies between the sink and the backends.",
                url=str(target),
            )
        return reply


ROUNDS = 3
"""Tries of the whole list of frontends."""


class HttpTransport:
    """A `wire.Transport` over HTTP. Threads may share it; each has its own connections, kept alive between requests."""

    def __init__(self, options: SinkOptions, *, clock: Clock | None = None, rng: random.Random | None = None) -> None:
        self._options = options
        self._rules = options.redirect_rules
        self._frontends = Frontends(options.frontends)
        self._connections = ConnectionsByThread(options)
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()
        self._authorization: str | None = None

    def send(self, request: Request, deadline: Deadline) -> Reply:
        """Send `request` and return its reply; see `wire.Transport` for the errors."""
        try:
            return self._with_failover(request, BodyPieces(request.body), deadline)
        except StarRocksSinkError as error:
            error.context.setdefault("label", request.label)
            if request.table is not None:
                error.context.setdefault("table", request.table)
            raise

    def close(self) -> None:
        """Close the connections of all threads; later requests raise NotSent."""
        self._connections.close()

    def _with_failover(self, request: Request, body: BodyPieces, deadline: Deadline) -> Reply:
        redirected = RedirectedRequest(
            request=request,
            body=body,
            headers=self._headers(request),
            deadline=deadline,
            reply_seconds=self._options.read_timeout,
            rules=self._rules,
            frontends=self._frontends,
            perform=self._perform,
        )
        addresses = self._frontends.in_order()
        retrying = Retrying(
            retry=retry_if_exception(partial(_may_repeat, request.operation)),
            stop=lambda state: state.attempt_number >= ROUNDS * len(addresses) or deadline.expired(),
            wait=partial(self._pause, len(addresses), deadline),
            sleep=self._clock.sleep,
            reraise=True,
        )
        for attempt in retrying:
            with attempt:
                return redirected.send(addresses[(attempt.retry_state.attempt_number - 1) % len(addresses)])
        raise AssertionError("tenacity neither returned nor raised")

    def _pause(self, addresses: int, deadline: Deadline, state: RetryCallState) -> float:
        """Seconds to wait: 0 before the next address, a growing, jittered pause before the list starts over."""
        finished, left = divmod(state.attempt_number, addresses)
        if left:
            return 0.0
        return min(self._rng.uniform(0.05, 0.1) * 4.0 ** (finished - 1), deadline.remaining())

    def _headers(self, request: Request) -> dict[str, bytes]:
        if self._authorization is None:
            self._authorization = basic_authorization(self._options.username, self._options.read_password())
        return headers_of(request, self._authorization)

    def _perform(self, exchange: Exchange) -> HttpResponse:
        return self._connections.for_this_thread().perform(exchange)


def _may_repeat(operation: Operation, error: BaseException) -> bool:
    """Whether `operation` may go to the next address after `error`: only if a repetition cannot act twice."""
    if operation is Operation.LOAD_STATE:
        return isinstance(error, (NotSent, ReplyLost, BadReply))
    return isinstance(error, NotSent)
