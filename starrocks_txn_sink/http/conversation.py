"""One request from its first address to its reply, over all redirects.

Every operation starts at a frontend; a follower points to the leader with 307. A load takes two steps
(wire contract 9): an empty PUT asks the leader, whose 307 names the backend, and only the backend gets the body. The
HTTP library never follows a redirect, because it would drop the credentials or send the body twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.errors import BadReply, HttpRefused, NotSent, RedirectRefused, ReplyLost
from starrocks_txn_sink.http.body import Pieces
from starrocks_txn_sink.http.frontends import Frontends
from starrocks_txn_sink.http.headers import METHODS, path_of
from starrocks_txn_sink.http.links import Answer, Exchange
from starrocks_txn_sink.http.replies import read_load_state, read_reply
from starrocks_txn_sink.options.addresses import DEFAULT_PORTS, Address, RedirectRules
from starrocks_txn_sink.wire import Operation, Reply, Request

HOPS = 4
"""Redirects followed at most: follower → leader → backend, and a leader that changes meanwhile."""

REDIRECT = 307


@dataclass(frozen=True, slots=True)
class Conversation:
    """Holds one request to the end. `perform` makes one exchange; `reply_seconds` bounds the wait for each reply."""

    request: Request
    body: Pieces
    headers: Mapping[str, bytes] = field(repr=False)
    deadline: Deadline
    reply_seconds: float
    rules: RedirectRules
    frontends: Frontends
    perform: Callable[[Exchange], Answer]

    def hold(self, first: Address) -> Reply:
        """Ask `first`, follow its redirects, and return the reply of whoever answers."""
        target, sending = first, False
        asked = first  # the last server that surely is a frontend, at the end the leader
        seen = {(first, False)}
        for _ in range(HOPS + 1):
            answer = self._ask(target, sending)
            if answer.status != REDIRECT:
                reply = self._understand(answer, target, sending)
                self.frontends.found_leader(asked if sending else target)
                return reply
            asked = target
            target = self._redirected(answer, target)
            sending = self.request.operation is Operation.LOAD and not self.frontends.includes(target)
            if (target, sending) in seen:
                break
            seen.add((target, sending))
        self.frontends.lost(first)
        raise NotSent(
            f"The frontends redirect {self.request.operation.value} to each other; it reached no one.",
            hint="They may be choosing a new leader; if it lasts, check their state (SHOW FRONTENDS).",
            url=str(first),
        )

    def _ask(self, target: Address, sending: bool) -> Answer:
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
            self.frontends.lost(target)
            raise

    def _redirected(self, answer: Answer, asked: Address) -> Address:
        """Where to go next. Path, query and user of the redirect are left aside: ours hold on every server."""
        try:
            parts = urlsplit(answer.location or "")
            default = DEFAULT_PORTS[parts.scheme]
            target = self.rules.rewrite(Address(parts.scheme, parts.hostname or "", parts.port or default))
        except (ValueError, KeyError):
            raise BadReply("A redirect without a usable Location came back.", url=str(asked)) from None
        if not target.host:
            raise BadReply("A redirect without a host came back.", url=str(asked))
        if not self.rules.allows(target):
            raise RedirectRefused(
                f"The frontend redirected to {target}, which is neither a host of load_url nor allowed; "
                "nothing was sent there.",
                hint=f"If that server is yours, set {self.rules.option_line(target)}, or rewrite it with redirect_map.",
                url=str(asked),
            )
        return target

    def _understand(self, answer: Answer, target: Address, sending: bool) -> Reply:
        read = read_load_state if self.request.operation is Operation.LOAD_STATE else read_reply
        try:
            reply = read(answer.status, answer.body)
        except (BadReply, HttpRefused) as error:
            error.context.setdefault("url", str(target))
            raise
        if self.request.operation is Operation.LOAD and reply.ok and not sending:
            raise BadReply(
                "The question for a backend was answered with OK: something followed the redirect by itself, "
                "and an empty load was made.",
                hint="Let load_url name the frontends themselves, not a proxy that follows redirects.",
                url=str(target),
            )
        if reply.ok and not answer.whole:
            raise ReplyLost(
                "The load was answered with OK before its body was sent.",
                hint="Check what stands between the sink and the backends.",
                url=str(target),
            )
        return reply
