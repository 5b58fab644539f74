"""Frontends: addresses of load_url and query_url, redirects from followers to the leader, dead frontends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from http import HTTPStatus

from starrocks_txn_sink.errors import AuthenticationFailed, QueryFailed, QueryRefused, StarRocksSinkError
from starrocks_txn_sink.http.connection import HttpResponse
from starrocks_txn_sink.http.transport import read_load_state
from starrocks_txn_sink.operations.doctor.server import judge_versions
from starrocks_txn_sink.operations.doctor.target import Check, Finding, Severity, Target
from starrocks_txn_sink.options.addresses import HOST_HINT, Address, RedirectRules, parse_location
from starrocks_txn_sink.protocol.label import Label
from starrocks_txn_sink.protocol.wire import Operation
from starrocks_txn_sink.sql.connection import Row, is_alive, leads

LABEL = "starrocks-txn-sink-doctor"
"""A label that no writer begins: its state can be requested without effect. The leader answers, followers redirect."""


def check_addresses(target: Target) -> Iterator[Finding]:
    """Check host names and ports of load_url and query_url, and the login at each query port."""
    options = target.options
    for role, listed in (("frontend of load_url", options.frontends), ("query port", options.query_addresses)):
        for address in listed:
            reached = target.reach(role, address)
            yield reached
            if role == "query port" and reached.severity is Severity.GOOD:
                yield _check_login(target, address)


def _check_login(target: Target, address: Address) -> Finding:
    check, user = Check("sql.login", address.netloc), target.options.username
    why = "The ledger is read and written over SQL."
    try:
        target.log_in(address).close()
    except QueryRefused as error:
        return check.failure(
            f"The query port rejected the user {user!r}: {error.message}",
            why,
            "Check username and password, and that the user may connect from this host and from every executor.",
        )
    except QueryFailed as error:
        return check.failure(
            error.message,
            why,
            "Check that query_url names query_port (9030 by default) and not another port of the frontend.",
        )
    return check.good(f"user {user!r} is accepted")


def check_leader(target: Target) -> Iterator[Finding]:
    """Find the leader: ask every frontend of load_url, and follow redirects."""
    for address in target.options.frontends:
        place = str(address)
        try:
            redirect = _ask_for_leader(target, address)
        except AuthenticationFailed as error:
            yield Check("http.login", place).failure(
                "The frontend rejected the user name or password (HTTP 401).",
                "Every request carries user name and password.",
                error.advice,
            )
        except StarRocksSinkError as error:
            why = "Every load starts with a request to a frontend."
            yield Check("frontend.answer", place).failure(error.message, why, error.advice)
        else:
            if redirect is None:
                yield Check("frontend.leader", place).good("answers as leader")
            else:
                yield from _follow_redirect(target, parse_location(redirect.location), place)
    if target.leader is None:
        yield Check("frontend.leader").failure(
            "No frontend of load_url answers as leader or redirects to it.",
            "Only the leader answers the steps of a StarRocks transaction.",
            "Solve the findings above first.",
        )


def _follow_redirect(target: Target, named: Address | None, place: str) -> Iterator[Finding]:
    """Check the address that the follower at `place` redirected to: allowed, reachable, and really the leader."""
    if named is None:
        yield Check("frontend.redirect", place).failure(
            "The frontend's redirect has no usable Location header.",
            "A follower redirects every request to the leader.",
            "Check which server answers at this address: a proxy may have rewritten the redirect.",
        )
        return
    rules = target.options.redirect_rules
    yield judge_redirect("frontend.redirect", named, rules, "the leader", place)
    leader = rules.rewrite(named)
    if rules.allows(leader) and not target.has_reached(leader):
        yield target.reach("leader, by a follower's redirect", leader)
        with contextlib.suppress(StarRocksSinkError):
            _ask_for_leader(target, leader)


def _ask_for_leader(target: Target, address: Address) -> HttpResponse | None:
    """Request a label's state: the redirect of a follower, or None from the leader, which `target` then knows."""
    label = Label(target.database or "information_schema", LABEL)
    answer = target.send(label.request(Operation.LOAD_STATE), address)
    if answer.status == HTTPStatus.TEMPORARY_REDIRECT:
        return answer
    read_load_state(answer.status, answer.body)
    target.leader = target.leader or address
    return None


def judge_redirect(check: str, named: Address, rules: RedirectRules, role: str, place: str) -> Finding:
    """Whether the sink would follow a redirect to `named`; pure."""
    rewritten = rules.rewrite(named)
    shown = str(rewritten) if rewritten == named else f"{named}, rewritten to {rewritten}"
    if rules.allows(rewritten):
        return Check(check, place).good(f"{role} is at {shown}, which is allowed")
    return Check(check, place).failure(
        f"The redirect leads to {shown}, which is neither a host of load_url nor in redirect_hosts.",
        "The password travels with every request, so the sink follows redirects to configured hosts only.",
        f"If that server is yours, set {rules.option_line(rewritten)}, or rewrite it with redirect_map.",
    )


def check_members(target: Target) -> Iterator[Finding]:
    """Check SHOW FRONTENDS: privilege, leader, frontends that are down, and the leader's query port."""
    try:
        rows = target.sql().rows("SHOW FRONTENDS")
    except QueryRefused as error:
        yield judge_refusal(error, target.options.find_leader)
        return
    yield from judge_members(rows)
    yield from judge_versions(rows, "frontend", unreleased=target.options.allow_unreleased_server)
    leader = next(filter(leads, rows), None)
    if leader is None or not target.options.find_leader:
        return
    rules = target.options.redirect_rules
    try:
        address = rules.query_target(str(leader["ip"]), int(leader["queryport"]))
    except ValueError:
        yield Check("frontend.query_leader").failure(
            "SHOW FRONTENDS gives the leader an address that is no host and port.",
            "The sink logs in nowhere else than at a plain host and port.",
            HOST_HINT,
        )
        return
    if len(rows) > 1:
        yield judge_query_leader(address, rules)
        if rules.allows_query(address) and not target.has_reached(address):
            yield target.reach("the leader's query port, by SHOW FRONTENDS", address)


def judge_query_leader(address: Address, rules: RedirectRules) -> Finding:
    """Whether the sink would log in at the leader's query port `address`; pure."""
    if rules.allows_query(address):
        return Check("frontend.query_leader").good(f"the leader's query port {address.netloc} is allowed")
    return Check("frontend.query_leader", address.netloc).failure(
        f"The leader's query port is {address.netloc}, whose host no option names.",
        "The sink logs in at configured hosts only.",
        f"If that server is yours, set {rules.option_line(address)}, or rewrite it with redirect_map.",
    )


def judge_refusal(error: QueryRefused, find_leader: bool) -> Finding:
    """Finding for a refused SHOW FRONTENDS; pure."""
    if not find_leader:
        return Check("privilege.operate").good("SHOW FRONTENDS is refused, and find_leader=False does not need it")
    return Check("privilege.operate").failure(
        f"SHOW FRONTENDS is refused: {error.message}",
        "The sink finds the leader with it: a follower lags behind and may return an old ledger.",
        "Grant OPERATE ON SYSTEM to the user, or set find_leader=False and let query_url name the leader alone.",
    )


def judge_members(rows: Sequence[Row]) -> Iterator[Finding]:
    """Findings for the rows of SHOW FRONTENDS; pure."""
    yield Check("privilege.operate").good("SHOW FRONTENDS is allowed")
    for row in rows:
        if not is_alive(row):
            yield Check("frontend.alive", str(row.get("name", ""))).warning(
                f"The frontend {row.get('ip')} is not alive.",
                "With one frontend less, the next failure may leave no leader.",
                "Start it, or remove it from the cluster.",
            )
    leader = next(filter(leads, rows), None)
    if leader is None:
        yield Check("frontend.leader").failure(
            "SHOW FRONTENDS names no leader.",
            "Nothing can be committed without one.",
            "Read the frontends' logs: an election may not end.",
        )
    else:
        yield Check("frontend.members").good(
            f"{len(rows)} frontend(s), the leader is {leader['ip']}:{leader['queryport']}"
        )
