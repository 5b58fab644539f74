"""A real StarRocks transaction, begun and rolled back, and the redirects of loads to backends. Writes no row."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus

from starrocks_txn_sink.errors import QueryRefused, StarRocksSinkError
from starrocks_txn_sink.http.connection import HttpResponse
from starrocks_txn_sink.http.transport import read_reply
from starrocks_txn_sink.operations.doctor.frontends import judge_redirect
from starrocks_txn_sink.operations.doctor.server import judge_versions
from starrocks_txn_sink.operations.doctor.target import Check, Finding, Target
from starrocks_txn_sink.options.addresses import HOST_HINT, Address, parse_location
from starrocks_txn_sink.protocol import ledger, refusals
from starrocks_txn_sink.protocol.label import Label, LabelPrefix
from starrocks_txn_sink.protocol.wire import Operation, Reply, Status
from starrocks_txn_sink.sql.connection import Row, is_alive

MOST_TABLES = 20
"""Tables at most whose redirect to a backend is requested."""

_JOB = "starrocks-txn-sink-doctor"
_LIFETIME = {"timeout": "60"}  # seconds; the server soon ends a transaction that a killed doctor left open


@dataclass(slots=True)
class TrialTransaction:
    """One transaction at a time on the leader; a refused load ends its label (wire contract 4.8)."""

    target: Target
    database: str
    leader: Address
    label: str = ""

    def begin(self) -> Reply:
        self.label = f"{_JOB}-{secrets.token_hex(8)}"
        return self._reply(Operation.BEGIN, headers=self.target.options.begin_headers() | _LIFETIME)

    def load(self, table: str) -> HttpResponse:
        return self._send(Operation.LOAD, table=table, headers=self.target.options.load_headers(table))

    def roll_back(self) -> Reply:
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
    """Begin a transaction and roll it back."""
    trial = TrialTransaction(target, target.require_database(), target.require_leader())
    begun = trial.begin()
    yield judge_begin(begun, trial.database)
    if begun.status is Status.OK:
        yield judge_rollback(trial.roll_back())


def judge_begin(reply: Reply, database: str) -> Finding:
    if reply.status is Status.OK:
        return Check("transaction.begin").good(f"a transaction can begin in {database}")
    error = refusals.begin_error(reply, "")
    return Check("transaction.begin").failure(
        f"The server refused to begin a transaction: {reply.message[:200]}",
        "The sink writes every row in a transaction.",
        error.advice or "Check the database's name, the warehouse, and that the server is StarRocks 4.0.7 or later.",
    )


def judge_rollback(reply: Reply) -> Finding:
    if reply.status is Status.OK:
        return Check("transaction.rollback").good("and roll back")
    return Check("transaction.rollback").failure(
        f"The server refused to roll back: {reply.message[:200]}",
        "The sink rolls a failed attempt back before it sends the rows again.",
        "Read the leader's log: frontends forget live transactions when they restart or change the leader.",
    )


# --- backends ---


def check_backends(target: Target) -> Iterator[Finding]:
    """Check the redirect of each table's load, and every backend and compute node that the cluster lists."""
    rules = target.options.redirect_rules
    seen: set[Address] = set()
    for named, role in [*_redirect_backends(target), *_listed_backends(target)]:
        if isinstance(named, Finding):
            yield named
        elif named not in seen:
            seen.add(named)
            yield judge_redirect("backend.redirect", named, rules, role, named.netloc)
            backend = rules.rewrite(named)
            if rules.allows(backend):
                yield target.reach("backend", backend)
    if not seen:
        yield Check("backend.redirect").skipped(
            "no backend is known: no table to load, and SHOW BACKENDS is not allowed"
        )


def _listed_backends(target: Target) -> Iterator[tuple[Address | Finding, str]]:
    for statement in ("SHOW BACKENDS", "SHOW COMPUTE NODES"):
        try:
            rows = target.sql().rows(statement)
        except QueryRefused:
            continue  # needs a privilege that the sink itself does not need; the redirects of loads name backends too
        unreleased = target.options.allow_unreleased_server
        yield from ((finding, "") for finding in judge_versions(rows, "backend", unreleased=unreleased))
        for row in rows:
            if not is_alive(row):
                yield judge_dead_backend(str(row.get("ip"))), ""
            elif row.get("ip") and str(row.get("httpport", "")).isdigit():
                yield _listed_address(row), f"a backend of {statement}"


def _listed_address(row: Row) -> Address | Finding:
    try:
        return Address("http", str(row["ip"]).lower(), int(row["httpport"]))
    except ValueError:
        return Check("backend.redirect").warning(
            f"The cluster lists a backend under {str(row['ip'])[:80]!r}, which is no host name.",
            "The sink follows no redirect to it.",
            HOST_HINT,
        )


def judge_dead_backend(host: str) -> Finding:
    """Warning for a backend that the cluster reports as dead; pure."""
    return Check("backend.alive", host).warning(
        f"The backend {host} is not alive.",
        "Loads go to the other backends, and commits need a quorum of replicas.",
        "Start it, or remove it from the cluster.",
    )


def _redirect_backends(target: Target) -> Iterator[tuple[Address | Finding, str]]:
    """Yield (backend, role) from the redirect of an empty load into each table, or a finding for a refused load."""
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
                    yield judge_listed(_is_listed(target, trial)), ""
                yield backend, f"the backend for table {table}"
                continue
            yield judge_refused_load(table, answer), ""
            trial.roll_back()
    finally:
        if trial.label:
            trial.roll_back()


def _is_listed(target: Target, trial: TrialTransaction) -> bool:
    """Whether a take-over would find the trial's label, which has a load by now, with the query that it uses."""
    sql, parameters = ledger.ListUnfinished(LabelPrefix(_JOB)).statement(trial.database)
    return trial.label in [str(row["label"]) for row in target.sql().rows(sql, parameters)]


def judge_listed(listed: bool) -> Finding:
    """Warning for a label that the query of a take-over does not list; pure. Its load has no body yet."""
    if listed:
        return Check("transaction.listed").good("a transaction with a load is listed in information_schema.loads")
    return Check("transaction.listed").warning(
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
        return Check("table.load", table).failure(error.message, why, error.advice)
    if reply.status is Status.OK:
        return Check("table.load", table).failure(
            "The empty load returned OK instead of a redirect: a proxy followed the redirect by itself.",
            "A proxy that follows redirects sends every row through the frontend and hides the backend.",
            "Set load_url to the frontends themselves.",
        )
    return Check("table.load", table).failure(
        f"The frontend refused a load: {reply.message[:200]}",
        why,
        "Check the table, the user's INSERT privilege and the stream-load properties.",
    )
