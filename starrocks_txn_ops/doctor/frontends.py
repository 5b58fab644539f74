"""Frontends: addresses of load_url and query_url, redirects from followers to the leader, dead frontends.

Then a real StarRocks transaction, begun and rolled back, and the redirects of its loads to backends. Writes no row.
"""

import contextlib
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus

from starrocks_txn_ops.doctor.server import HELD, judge_versions, unfinished_labels
from starrocks_txn_ops.doctor.target import Finding, Severity, Target, Topic
from starrocks_txn_sink.errors import (
    AuthenticationFailed,
    NoBackend,
    QueryFailed,
    QueryRefused,
    ServerRefused,
    StarRocksSinkError,
)
from starrocks_txn_sink.http.connection import HttpResponse
from starrocks_txn_sink.http.transport import read_load_state, read_reply
from starrocks_txn_sink.options.addresses import HOST_HINT, Address, parse_location
from starrocks_txn_sink.options.redirects import RedirectRules
from starrocks_txn_sink.protocol import refusals
from starrocks_txn_sink.protocol.label import Label
from starrocks_txn_sink.protocol.wire import Operation, Reply, Status
from starrocks_txn_sink.sql.connection import Row, is_alive, leads

LABEL = "starrocks-txn-sink-doctor"
"""A label that no writer begins, so that requests for its state have no effect. The leader answers; followers redirect.

Labels of the doctor's own transactions have this prefix.
"""
MOST_TABLES = 20
"""Number of tables for which the doctor requests the redirect to a backend."""

_LIFETIME = {"timeout": "60"}  # seconds; the server soon ends a transaction that a killed doctor left open


def check_addresses(target: Target) -> Iterator[Finding]:
    """Check host names and ports of load_url and query_url, and the login at each query port."""
    options = target.options
    for role, addresses in (("frontend of load_url", options.frontends), ("query port", options.query_addresses)):
        for address in addresses:
            reached = target.reach(role, address)
            yield reached
            if role == "query port" and reached.severity is Severity.GOOD:
                yield _check_login(target, address)


def _check_login(target: Target, address: Address) -> Finding:
    check, user = Topic("sql.login", address.netloc), target.options.username
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
            yield Topic("http.login", place).failure(
                "The frontend rejected the user name or password (HTTP 401).",
                "Every request carries user name and password.",
                error.advice,
            )
        except StarRocksSinkError as error:
            why = "Every load starts with a request to a frontend."
            yield Topic("frontend.answer", place).failure(error.message, why, error.advice)
        else:
            if redirect is None:
                yield Topic("frontend.leader", place).good("answers as leader")
            else:
                yield from _follow_redirect(target, parse_location(redirect.location), place)
    if target.leader is None:
        yield Topic("frontend.leader").failure(
            "No frontend of load_url answers as leader or redirects to it.",
            "Only the leader answers the steps of a StarRocks transaction.",
            "Solve the findings above first.",
        )


def _follow_redirect(target: Target, address: Address | None, place: str) -> Iterator[Finding]:
    """Check the address that the follower at `place` redirected to: allowed, reachable, and really the leader."""
    if address is None:
        yield Topic("frontend.redirect", place).failure(
            "The frontend's redirect has no usable Location header.",
            "A follower redirects every request to the leader.",
            "Check which server answers at this address: a proxy may have rewritten the redirect.",
        )
        return
    rules = target.options.redirect_rules
    yield judge_redirect("frontend.redirect", address, rules, "the leader", place)
    leader = rules.rewrite(address)
    if rules.allows(leader) and not target.has_reached(leader):
        yield target.reach("leader, by a follower's redirect", leader)
        with contextlib.suppress(StarRocksSinkError):
            _ask_for_leader(target, leader)


def _ask_for_leader(target: Target, address: Address) -> HttpResponse | None:
    """Request a label's state. Returns a follower's redirect; None from the leader, which becomes `target.leader`."""
    label = Label(target.options.database, LABEL)
    answer = target.send(label.request(Operation.LOAD_STATE), address)
    if answer.status == HTTPStatus.TEMPORARY_REDIRECT:
        return answer
    read_load_state(answer.status, answer.body)
    target.leader = target.leader or address
    return None


def judge_redirect(check: str, address: Address, rules: RedirectRules, role: str, place: str) -> Finding:
    """Whether the sink would follow a redirect to `address`; pure."""
    rewritten = rules.rewrite(address)
    place_text = str(rewritten) if rewritten == address else f"{address}, rewritten to {rewritten}"
    if rules.allows(rewritten):
        return Topic(check, place).good(f"{role} is at {place_text}, which is allowed")
    return Topic(check, place).failure(
        f"The redirect leads to {place_text}, which is neither a host of load_url nor in redirect_hosts.",
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
        yield Topic("frontend.query_leader").failure(
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
        return Topic("frontend.query_leader").good(f"the leader's query port {address.netloc} is allowed")
    return Topic("frontend.query_leader", address.netloc).failure(
        f"The leader's query port is {address.netloc}, whose host no option names.",
        "The sink logs in at configured hosts only.",
        f"If that server is yours, set {rules.option_line(address)}, or rewrite it with redirect_map.",
    )


def judge_refusal(error: QueryRefused, find_leader: bool) -> Finding:
    """Finding for a refused SHOW FRONTENDS; pure."""
    if not find_leader:
        return Topic("privilege.operate").good("SHOW FRONTENDS is refused, and find_leader=False does not need it")
    return Topic("privilege.operate").failure(
        f"SHOW FRONTENDS is refused: {error.message}",
        "The sink finds the leader with it: a follower lags behind and may return an old ledger.",
        "Grant OPERATE ON SYSTEM to the user, or set find_leader=False and let query_url name the leader alone.",
    )


def judge_members(rows: Sequence[Row]) -> Iterator[Finding]:
    """Findings for the rows of SHOW FRONTENDS; pure."""
    yield Topic("privilege.operate").good("SHOW FRONTENDS is allowed")
    for row in rows:
        if not is_alive(row):
            yield Topic("frontend.alive", str(row.get("name", ""))).warning(
                f"The frontend {row.get('ip')} is not alive.",
                "With one frontend less, the next failure may leave no leader.",
                "Start it, or remove it from the cluster.",
            )
    leader = next(filter(leads, rows), None)
    if leader is None:
        yield Topic("frontend.leader").failure(
            "SHOW FRONTENDS names no leader.",
            "Nothing can be committed without one.",
            "Read the frontends' logs: an election may not end.",
        )
    else:
        yield Topic("frontend.members").good(
            f"{len(rows)} frontend(s), the leader is {leader['ip']}:{leader['queryport']}"
        )


# --- an empty transaction ---


@dataclass(slots=True)
class TrialTransaction:
    """One transaction at a time on the leader; a refused load ends its label (wire contract 4.8)."""

    target: Target
    database: str
    leader: Address
    label: str = ""

    def begin(self) -> Reply:
        """Begin under a new label. This and the others raise the errors of `Target.send`; a refusal is a reply."""
        self.label = f"{LABEL}-{secrets.token_hex(8)}"
        return self._reply(Operation.BEGIN, headers=self.target.options.begin_headers() | _LIFETIME)

    def load(self, table: str) -> HttpResponse:
        """Load no byte into the table: the answer is a redirect to a backend, or a refusal."""
        return self._send(Operation.LOAD, table=table, headers=self.target.options.load_headers(table))

    def roll_back(self) -> Reply:
        """Roll the label back; also after an error the next transaction needs `begin`."""
        try:
            return self._reply(Operation.ROLLBACK)
        finally:
            self.label = ""

    def _send(self, operation: Operation, **fields: object) -> HttpResponse:
        return self.target.send(Label(self.database, self.label).request(operation, **fields), self.leader)

    def _reply(self, operation: Operation, **fields: object) -> Reply:
        answer = self._send(operation, **fields)
        return read_reply(answer.status, answer.body)


def check_empty_transaction(target: Target) -> Iterator[Finding]:
    """Begin a transaction and roll it back; raises SectionSkipped without a database or a leader."""
    trial = TrialTransaction(target, target.require_database(), target.require_leader())
    reply = trial.begin()
    yield judge_begin(reply, trial.database)
    if reply.status is Status.OK:
        yield judge_rollback(trial.roll_back())


def judge_begin(reply: Reply, database: str) -> Finding:
    """Good, or a failure with the advice that the sink would give."""
    if reply.status is Status.OK:
        return Topic("transaction.begin").good(f"a transaction can begin in {database}")
    error = refusals.begin_error(reply, "")
    return Topic("transaction.begin").failure(
        f"The server refused to begin a transaction: {reply.message[:200]}",
        "The sink writes every row in a transaction.",
        error.advice or "Check the database's name, the warehouse, and that the server is StarRocks 4.0.7 or later.",
    )


def judge_rollback(reply: Reply) -> Finding:
    """Good, or a failure: without rollback no attempt can be repeated."""
    if reply.status is Status.OK:
        return Topic("transaction.rollback").good("and roll back")
    return Topic("transaction.rollback").failure(
        f"The server refused to roll back: {reply.message[:200]}",
        "The sink rolls a failed attempt back before it sends the rows again.",
        "Read the leader's log: frontends forget live transactions when they restart or change the leader.",
    )


# --- backends ---


def check_backends(target: Target) -> Iterator[Finding]:
    """Check the redirect of each table's load, and every backend and compute node that the cluster lists."""
    rules = target.options.redirect_rules
    addresses: set[Address] = set()
    for address, role in [*_redirect_backends(target), *_listed_backends(target)]:
        if isinstance(address, Finding):
            yield address
        elif address not in addresses:
            addresses.add(address)
            yield judge_redirect("backend.redirect", address, rules, role, address.netloc)
            backend = rules.rewrite(address)
            if rules.allows(backend):
                yield target.reach("backend", backend)
    if not addresses:
        needs = "a backend that is alive" if target.no_backend else "a table to load, or the right to SHOW BACKENDS"
        yield Topic("backend.redirect").skip(f"not checked: it needs {needs}")


def _listed_backends(target: Target) -> Iterator[tuple[Address | Finding, str]]:
    """Yield (address, role) of each backend and compute node that the cluster lists, or a finding in its place."""
    alive: list[bool] = []
    for statement in ("SHOW BACKENDS", "SHOW COMPUTE NODES"):
        try:
            rows = target.sql().rows(statement)
        except QueryRefused:
            continue  # the sink does without this privilege; the redirects of loads name backends, too
        unreleased = target.options.allow_unreleased_server
        yield from ((finding, "") for finding in judge_versions(rows, "backend", unreleased=unreleased))
        for row in rows:
            alive.append(is_alive(row))
            if not alive[-1]:
                yield judge_dead_backend(str(row.get("ip")), str(row.get("errmsg") or "")), ""
            elif row.get("ip") and str(row.get("httpport", "")).isdigit():
                yield _listed_address(row), f"a backend of {statement}"
    if alive and not any(alive) and not target.no_backend:
        target.no_backend = "backends"
        yield judge_no_backend(NoBackend(f"None of the {len(alive)} backends is alive.")), ""


def _listed_address(row: Row) -> Address | Finding:
    try:
        return Address("http", str(row["ip"]).lower(), int(row["httpport"]))
    except ValueError:
        return Topic("backend.redirect").warning(
            f"The cluster lists a backend under {str(row['ip'])[:80]!r}, which is no host name.",
            "The sink follows no redirect to it.",
            HOST_HINT,
        )


def judge_no_backend(error: NoBackend) -> Finding:
    """Failure for a cluster without a backend that is alive; pure."""
    return Topic("backend.alive").failure(
        error.message,
        "The frontend answers, but loads, commits, the ledger and most of information_schema need a backend. A job "
        "waits for one, until batch_deadline.",
        error.advice,
    )


def judge_dead_backend(host: str, error: str = "") -> Finding:
    """Warning for a backend that the cluster reports as dead, with its reason; pure."""
    return Topic("backend.alive", host).warning(
        f"The backend {host} is not alive{f' ({error[:200]})' if error else ''}.",
        "Loads go to the other backends, and commits need a quorum of replicas.",
        "Start it, or remove it from the cluster.",
    )


def _redirect_backends(target: Target) -> Iterator[tuple[Address | Finding, str]]:
    """Yield (address, role) from the redirect of an empty load into each table, or a finding for a refused load."""
    if target.database is None or target.leader is None or not target.tables:
        return
    trial = TrialTransaction(target, target.database, target.leader)
    try:
        for table in target.tables[:MOST_TABLES]:
            # One label serves all tables until a refused load ends it; the next table then begins a new one.
            if not trial.label and trial.begin().status is not Status.OK:
                return
            answer = trial.load(table)
            backend = parse_location(answer.location) if answer.status == HTTPStatus.TEMPORARY_REDIRECT else None
            if backend is not None:
                if table == target.tables[0] and target.options.exactly_once:
                    yield _judge_take_over(target, trial), ""
                yield backend, f"the backend for table {table}"
                continue
            yield judge_refused_load(table, answer), ""
            trial.roll_back()
    finally:
        if trial.label:
            trial.roll_back()


def _judge_take_over(target: Target, trial: TrialTransaction) -> Finding:
    """Whether a take-over finds the trial's label, which has a load by now; a warning if its list does not come."""
    try:
        return judge_listed(trial.label in unfinished_labels(target, trial.database))
    except QueryRefused as error:
        return Topic("transaction.listed").skip(f"open labels cannot be listed: {error.message}")
    except QueryFailed as error:
        return Topic("transaction.listed").warning(error.message, HELD, error.advice)


def judge_listed(listed: bool) -> Finding:
    """Finding for a label with a load that has no body yet: whether the query of a take-over lists it; pure."""
    if listed:
        return Topic("transaction.listed").good("a transaction with a load is listed in information_schema.loads")
    return Topic("transaction.listed").warning(
        "A transaction with a load is not listed in information_schema.loads.",
        "A take-over finds there what a sleeping writer left open, and rolls it back, or rows could be written twice. "
        "Each run of a job asks again, and logs label.unlisted.",
        "Let the user that loads see its own loads, and check the server's release.",
    )


def judge_refused_load(table: str, answer: HttpResponse) -> Finding:
    """Failure for a load that was not redirected to a backend; pure."""
    why = "The frontend plans the first load of a table before it redirects; a refusal fails every attempt."
    try:
        reply = read_reply(answer.status, answer.body)
    except StarRocksSinkError as error:
        return Topic("table.load", table).failure(error.message, why, error.advice)
    if reply.status is Status.OK:
        return Topic("table.load", table).failure(
            "The empty load returned OK instead of a redirect: a proxy followed the redirect by itself.",
            "A proxy that follows redirects sends every row through the frontend and hides the backend.",
            "Set load_url to the frontends themselves.",
        )
    refusal = refusals.load_error(reply, "", table)
    return Topic("table.load", table).failure(
        f"{refusal.message[:300]}.",
        why,
        refusal.advice
        if isinstance(refusal, ServerRefused)
        else "Check the table, the user's INSERT privilege and the stream-load properties.",
    )
