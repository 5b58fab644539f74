"""`HttpTransport`: one request of the protocol to whichever frontend answers, and its reply.

What may be asked again (wire contract 1.2, 2, 9): a request that surely had no effect goes to the next address;
get_load_state, which changes nothing, also when its reply was lost. A request whose effect is possible is sent once.
"""

from __future__ import annotations

import random
from functools import partial

from tenacity import RetryCallState, Retrying, retry_if_exception

from starrocks_txn_sink.clock import Clock, Deadline, SystemClock
from starrocks_txn_sink.errors import BadReply, NotSent, ReplyLost, StarRocksSinkError
from starrocks_txn_sink.http.body import Pieces
from starrocks_txn_sink.http.conversation import Conversation
from starrocks_txn_sink.http.frontends import Frontends
from starrocks_txn_sink.http.headers import basic_authorization, headers_of
from starrocks_txn_sink.http.links import Answer, Exchange, Links
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.wire import Operation, Reply, Request

ROUNDS = 3
"""How often the whole list of frontends is tried."""


class HttpTransport:
    """A `wire.Transport` over HTTP. Threads may share it; each has its own connections, kept alive between requests."""

    def __init__(self, options: SinkOptions, *, clock: Clock | None = None, rng: random.Random | None = None) -> None:
        self._options = options
        self._rules = options.redirect_rules
        self._frontends = Frontends(options.frontends)
        self._links = Links(options)
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()
        self._authorization: str | None = None

    def send(self, request: Request, deadline: Deadline) -> Reply:
        """Send `request` and return its reply; see `wire.Transport` for the errors."""
        try:
            return self._with_failover(request, Pieces(request.body), deadline)
        except StarRocksSinkError as error:
            error.context.setdefault("label", request.label)
            if request.table is not None:
                error.context.setdefault("table", request.table)
            raise

    def close(self) -> None:
        """Close the connections of all threads; later requests raise NotSent."""
        self._links.close()

    def _with_failover(self, request: Request, body: Pieces, deadline: Deadline) -> Reply:
        conversation = Conversation(
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
                return conversation.hold(addresses[(attempt.retry_state.attempt_number - 1) % len(addresses)])
        raise AssertionError("tenacity neither returned nor raised")

    def _pause(self, addresses: int, deadline: Deadline, state: RetryCallState) -> float:
        """The next address is tried at once; before the list is tried again there is a growing, jittered pause."""
        finished, left = divmod(state.attempt_number, addresses)
        if left:
            return 0.0
        return min(self._rng.uniform(0.05, 0.1) * 4.0 ** (finished - 1), deadline.remaining())

    def _headers(self, request: Request) -> dict[str, bytes]:
        if self._authorization is None:
            self._authorization = basic_authorization(self._options.username, self._options.read_password())
        return headers_of(request, self._authorization)

    def _perform(self, exchange: Exchange) -> Answer:
        return self._links.mine().perform(exchange)


def _may_repeat(operation: Operation, error: BaseException) -> bool:
    """Whether `operation`, failed with `error`, may be sent to the next address."""
    if operation is Operation.LOAD_STATE:
        return isinstance(error, (NotSent, ReplyLost, BadReply))
    return isinstance(error, NotSent)
