"""Frontends: every address of load_url and query_url, the way from a follower to the leader, who is alive."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from starrocks_txn_sink.doctor.finding import Finding, failure, good, warning
from starrocks_txn_sink.doctor.http_probe import REDIRECT, HttpProbe, target_of
from starrocks_txn_sink.doctor.patient import Patient
from starrocks_txn_sink.doctor.reach import Door, judge_knock, knock
from starrocks_txn_sink.doctor.server import judge_versions
from starrocks_txn_sink.errors import AuthenticationFailed, QueryFailed, QueryRefused, StarRocksSinkError
from starrocks_txn_sink.http.messages import read_load_state
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.addresses import Address, RedirectRules
from starrocks_txn_sink.sql_connection import Row, SqlConnection
from starrocks_txn_sink.wire import Operation

LABEL = "starrocks-txn-sink-doctor"
"""A label that nobody begins: its state is asked for, which every frontend answers or redirects."""


@dataclass(frozen=True, slots=True)
class Answered:
    """What a frontend did with a question that only the leader answers: led on (`target`), answered, or failed."""

    address: Address
    target: Address | None = None
    redirected: bool = False
    error: StarRocksSinkError | None = None


def addresses(patient: Patient) -> Iterator[Finding]:
    """Names and ports of load_url and query_url, and whether the query ports let us in."""
    options = patient.options
    for role, listed in (("frontend of load_url", options.frontends), ("query port", options.query_addresses)):
        for address in listed:
            door = Door(role, address.host, address.port)
            patient.doors.append(door)
            seen = knock(door, options.connect_timeout)
            yield from judge_knock(seen)
            if role == "query port" and seen.addresses and not seen.error:
                yield _login(options, address)


def _login(options: SinkOptions, address: Address) -> Finding:
    place = address.netloc
    try:
        SqlConnection(options, address).close()
    except QueryRefused as error:
        return failure(
            "sql.login",
            f"The query port refuses the user {options.username!r}: {error.message}",
            "The ledger is read and written over SQL.",
            "Check username and password, and that the user may connect from here and from every executor.",
            place,
        )
    except QueryFailed as error:
        return failure(
            "sql.login",
            error.message,
            "The ledger is read and written over SQL.",
            "Check that query_url names query_port (9030 by default) and not another port of the frontend.",
            place,
        )
    return good("sql.login", f"user {options.username!r} is let in", place)


def leading(patient: Patient) -> Iterator[Finding]:
    """Ask every frontend of load_url for a label's state: the leader answers, a follower redirects to it."""
    rules, database = patient.options.redirect_rules, patient.database or "information_schema"
    for address in patient.options.frontends:
        answered = ask(patient.http(), address, database)
        yield from judge_answer(answered, rules)
        if answered.error is None and not answered.redirected:
            patient.leader = patient.leader or address
        elif answered.target is not None:
            yield from _follow(patient, rules.rewrite(answered.target), rules, database)
    if patient.leader is None:
        yield failure(
            "frontend.leader",
            "No frontend of load_url answers as leader or leads to it.",
            "Every step of a StarRocks transaction is answered by the leader alone.",
            "Repair what the findings before this one name.",
        )


def _follow(patient: Patient, target: Address, rules: RedirectRules, database: str) -> Iterator[Finding]:
    """The follower's redirect, followed: its target must be allowed, open, and the leader."""
    if not rules.allows(target):
        return
    door = Door("leader, by a follower's redirect", target.host, target.port)
    if patient.knows(door):
        return
    patient.doors.append(door)
    yield from judge_knock(knock(door, patient.options.connect_timeout))
    answered = ask(patient.http(), target, database)
    if answered.error is None and not answered.redirected:
        patient.leader = patient.leader or target


def ask(http: HttpProbe, address: Address, database: str) -> Answered:
    try:
        answer = http.ask(Operation.LOAD_STATE, address, database, LABEL)
        if answer.status == REDIRECT:
            return Answered(address, target_of(answer), redirected=True)
        read_load_state(answer.status, answer.body)
    except StarRocksSinkError as error:
        return Answered(address, error=error)
    return Answered(address)


def judge_answer(answered: Answered, rules: RedirectRules) -> Iterator[Finding]:
    """What one frontend's answer means; pure."""
    place = str(answered.address)
    if isinstance(answered.error, AuthenticationFailed):
        yield failure(
            "http.login",
            "The frontend answers 401: it does not know the user or the password.",
            "Every request carries them.",
            answered.error.advice,
            place,
        )
    elif answered.error is not None:
        yield failure(
            "frontend.answer", answered.error.message, "Loads begin at a frontend.", answered.error.advice, place
        )
    elif not answered.redirected:
        yield good("frontend.leader", "answers as leader", place)
    elif answered.target is None:
        yield failure(
            "frontend.redirect",
            "The frontend redirects without a usable Location.",
            "A follower redirects every request to the leader.",
            "Check what answers at this address: a proxy may have rewritten the redirect.",
            place,
        )
    else:
        yield judge_redirect("frontend.redirect", answered.target, rules, "the leader", place)


def judge_redirect(check: str, named: Address, rules: RedirectRules, whom: str, place: str) -> Finding:
    """Whether the sink would follow a redirect to `named`; pure."""
    target = rules.rewrite(named)
    shown = str(target) if target == named else f"{named}, rewritten to {target}"
    if rules.allows(target):
        return good(check, f"{whom} is at {shown}, which is allowed", place)
    return failure(
        check,
        f"The redirect leads to {shown}, which is neither a host of load_url nor allowed.",
        "The password travels with every request, so the sink follows redirects to named hosts only.",
        f"If that server is yours, set {rules.option_line(target)}, or rewrite it with redirect_map.",
        place,
    )


def members(patient: Patient) -> Iterator[Finding]:
    """SHOW FRONTENDS: may it be asked, who leads, who is down, and can the leader's query port be reached?"""
    try:
        rows = patient.sql().rows("SHOW FRONTENDS")
    except QueryRefused as error:
        yield judge_refusal(error, patient.options.find_leader)
        return
    yield from judge_members(rows)
    yield from judge_versions(rows, "frontend")
    leader = leader_of(rows)
    if leader is None or not patient.options.find_leader:
        return
    host, port = str(leader["ip"]), int(leader["queryport"])
    target = rewritten(f"{host}:{port}", patient.options.redirect_map)
    door = Door("the leader's query port, by SHOW FRONTENDS", target.host, target.port)
    if len(rows) > 1 and not patient.knows(door):
        patient.doors.append(door)
        yield from judge_knock(knock(door, patient.options.connect_timeout))


def rewritten(place: str, redirect_map: Mapping[str, str]) -> Address:
    host, _, port = redirect_map.get(place, place).rpartition(":")
    return Address("mysql", host, int(port))


def judge_refusal(error: QueryRefused, find_leader: bool) -> Finding:
    """SHOW FRONTENDS was refused; pure."""
    what = f"SHOW FRONTENDS is refused: {error.message}"
    if not find_leader:
        return good("privilege.operate", "SHOW FRONTENDS is refused, and find_leader=False does not need it")
    return failure(
        "privilege.operate",
        what,
        "The sink looks the leader up with it, because a follower lags behind and would lie about the ledger.",
        "Grant OPERATE ON SYSTEM to the user, or set find_leader=False and let query_url name the leader alone.",
    )


def judge_members(rows: Sequence[Row]) -> Iterator[Finding]:
    """The cluster's frontends, by SHOW FRONTENDS; pure."""
    yield good("privilege.operate", "SHOW FRONTENDS is allowed")
    for row in rows:
        if str(row.get("alive", "true")).lower() not in ("true", "1"):
            yield warning(
                "frontend.alive",
                f"The frontend {row.get('ip')} is not alive.",
                "With one less, the next failure may leave no leader.",
                "Start it, or remove it from the cluster.",
                str(row.get("name", "")),
            )
    leader = leader_of(rows)
    if leader is None:
        yield failure(
            "frontend.leader",
            "SHOW FRONTENDS names no leader.",
            "Nothing can be committed without one.",
            "Look into the frontends' logs: an election does not end.",
        )
    else:
        yield good("frontend.members", f"{len(rows)} frontend(s), the leader is {leader['ip']}:{leader['queryport']}")


def leader_of(rows: Sequence[Row]) -> Row | None:
    for row in rows:
        if str(row.get("role", "")).upper() == "LEADER" or str(row.get("ismaster", "")).lower() == "true":
            return row
    return None
