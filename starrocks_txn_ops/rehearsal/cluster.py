"""Checks of the cluster: version, privileges, the sink's own table, frontends, redirects, TLS."""

import re
from collections.abc import Iterator
from http import HTTPStatus

from starrocks_txn_ops.rehearsal.findings import Checks, Evidence, as_expected, differs, harmless
from starrocks_txn_ops.rehearsal.stage import Stage, Surprise, array, reply_text, require
from starrocks_txn_sink.errors import OptionError, QueryRefused, StarRocksSinkError
from starrocks_txn_sink.http.connection import HttpResponse
from starrocks_txn_sink.http.transport import read_reply
from starrocks_txn_sink.options.addresses import Address, parse_location, require_supported
from starrocks_txn_sink.protocol.ledger import LEDGER_TABLE, Owner, ReadPositions, WriteClaim, identifier
from starrocks_txn_sink.protocol.wire import LabelState, Operation, Request
from starrocks_txn_sink.sql.connection import VERSION_SQL, count_alive, leads, read_version

CHECKS = Checks()

_ASK_SECONDS = 30.0


@CHECKS.expects("server.version", "The release has reliable multi-table transactions.", "10.1")
def check_version(stage: Stage) -> Evidence:
    """Read the version, as a job does at its start, and ask whether the options allow it."""
    stage.version = read_version(stage.rows(VERSION_SQL))
    try:
        require_supported(stage.version, unreleased=stage.options.allow_unreleased_server)
    except OptionError as error:
        return differs(error.message, error.advice)
    return as_expected(f"StarRocks {stage.version}")


# --- privileges ---


@CHECKS.expects("privilege.frontends", "SHOW FRONTENDS names the leader.", "10.11")
def check_frontends_privilege(stage: Stage) -> Evidence:
    """Count the leaders; a refusal is harmless for a job that does not look for the leader."""
    try:
        rows = stage.rows("SHOW FRONTENDS")
    except QueryRefused as error:
        if not stage.options.find_leader:
            return harmless(f"refused: {error.message}", "find_leader=False does without it")
        advice = "Grant OPERATE ON SYSTEM, or set find_leader=False and let query_url name the leader alone."
        return differs(f"refused: {error.message}", advice)
    leaders = sum(map(leads, rows))
    if leaders != 1:
        return differs(f"{leaders} of {len(rows)} frontends lead", "Read the frontends' logs: an election may last.")
    return as_expected(f"{len(rows)} frontend(s), one leads")


@CHECKS.expects("privilege.loads", "information_schema.loads can be read.", "6.5")
def check_loads_privilege(stage: Stage) -> Evidence:
    """Read one row of any label."""
    try:
        rows = stage.rows("SELECT * FROM information_schema.loads LIMIT 1")
    except QueryRefused as error:
        return differs(f"refused: {error.message}", "Let the user that loads read information_schema.loads.")
    columns = len(rows[0]) if rows else 0
    return as_expected("it can be read" + (f", {columns} columns" if columns else ""))


@CHECKS.expects("privilege.create", "The user may create tables.", "7.3")
def check_create(stage: Stage) -> Evidence:
    """Create the scratch tables, with as many replicas as the cluster can hold, or else with one."""
    alive = live_backends(stage)
    replications = dict.fromkeys((None if alive is None else min(alive, 3), 1))
    refused = ""
    for replication in replications:
        try:
            stage.create_all(replication)
        except QueryRefused as error:
            refused = error.message
            stage.drop_made()
        else:
            return as_expected(f"four tables, {replication or 'the default number of'} replica(s)")
    return differs(f"refused: {refused}", f"Grant CREATE TABLE and DROP ON DATABASE {stage.database} to the user.")


def live_backends(stage: Stage) -> int | None:
    """Backends that are alive; None without the privilege to ask, or where compute nodes hold the data."""
    return count_alive(stage.rows_if_allowed("SHOW BACKENDS")) or None


@CHECKS.expects("ledger.create", "The ledger's DDL works with the replicas of the options.", "10.8")
def check_ledger(stage: Stage) -> Evidence:
    """Run the ledger's DDL as a job does; if the server refuses it, with one replica."""
    replication = stage.wanted.ledger_replication
    try:
        stage.ledger.create(replication, stage.deadline())
    except QueryRefused as error:
        return _other_ledger(stage, error)
    finally:
        stage.drop_at_end(LEDGER_TABLE)
    ddl_rows = stage.rows_if_allowed(f"SHOW CREATE TABLE {identifier(stage.database, LEDGER_TABLE)}")
    match = re.search(r'"replication_num"\s*=\s*"(\d+)"', str(next(iter(ddl_rows), {}).get("create table", "")))
    replicas_text = f", {match[1]} replica(s)" if match else ""
    return as_expected(
        f"created with {'the default' if replication is None else f'ledger_replication={replication}'}{replicas_text}"
    )


def _other_ledger(stage: Stage, refused: QueryRefused) -> Evidence:
    """Create the ledger with one replica for the other checks; returns the difference."""
    try:
        stage.ledger.create(1, stage.deadline())
    except QueryRefused:
        advice = f"Grant CREATE TABLE ON DATABASE, or create it by hand and set ledger_create=False. {refused.advice}"
        return differs(f"refused: {refused.message}", advice)
    alive = live_backends(stage)
    number = f"ledger_replication={min(alive, 3)}" if alive else "ledger_replication to the number of live backends"
    return differs(f"refused: {refused.message}", f"Set {number}, or start more backends.")


@CHECKS.expects("privilege.insert", "INSERT into the ledger works.", "7.3")
def check_insert(stage: Stage) -> Evidence:
    """Write the claim of a driver by the sink's own statement."""
    owner = Owner("token", stage.epoch, "rehearsal")
    stage.ledger.execute(WriteClaim(stage.job, owner), stage.deadline())
    return as_expected("a claim is written into the ledger")


@CHECKS.expects("privilege.select", "SELECT from the ledger shows it.", "7.3")
def check_select(stage: Stage) -> Evidence:
    """Read positions on the leader, as the sink does, and count the claim over the first query port."""
    stage.ledger.execute(ReadPositions(stage.job), stage.deadline())
    count = stage.value(f"SELECT count(*) FROM {identifier(stage.database, LEDGER_TABLE)} WHERE job = %s", (stage.job,))
    if int(count) != 1:
        return differs(f"{count} rows of the claim are visible", "Check that query_url and load_url name one cluster.")
    return as_expected("and read back")


@CHECKS.expects("privilege.delete", "DELETE from the ledger works.", "7.3")
def check_delete(stage: Stage) -> Evidence:
    """Delete the claim; a refusal is harmless, because only old claims stay then."""
    try:
        stage.rows(f"DELETE FROM {identifier(stage.database, LEDGER_TABLE)} WHERE job = %s", (stage.job,))
    except QueryRefused as error:
        return harmless(
            f"refused: {error.message}", "claims of earlier runs stay in the ledger, one row for each retry"
        )
    return as_expected("and deleted")


# --- TLS, frontends, redirects ---


@CHECKS.expects("tls.load", "load_url and the certificate's options fit.", "1.1")
def check_load_tls(stage: Stage) -> Evidence:
    """Look at the schemes of load_url alone: all other checks have used them."""
    schemes = {address.scheme for address in stage.options.frontends}
    if schemes == {"https"}:
        return as_expected("https: passwords are encrypted on the way to the frontends")
    return as_expected("http: passwords and rows cross the network in clear")


@CHECKS.expects("tls.query", "The query port and query_tls fit.", "10.9")
def check_query_tls(stage: Stage) -> Evidence:
    """Look at the option alone, and without TLS whether the server asks for it."""
    if stage.options.query_tls:
        return as_expected("TLS: the certificate was checked" if stage.options.tls_verify else "TLS, unchecked")
    return as_expected(f"plain: the password leaves only as an answer to a challenge{_forced_tls(stage)}")


def _forced_tls(stage: Stage) -> str:
    rows = stage.rows_if_allowed("ADMIN SHOW FRONTEND CONFIG LIKE 'ssl_force_secure_transport'")
    value = str(rows[0].get("value", "")) if rows else ""
    return f"; ssl_force_secure_transport is {value}" if value else ""


@CHECKS.expects("frontend.begin", "The leader begins a transaction; followers redirect to it.", "1.1", "2.2")
def check_begin(stage: Stage) -> Evidence:
    """Begin on every known frontend."""
    leading, redirected, silent = 0, 0, 0
    for address, leader in _frontends(stage):
        label = stage.new_label()
        request = label.request(Operation.BEGIN, headers=stage.options.begin_headers())
        stage.remember(label)
        try:
            answer = stage.transport.ask(request, address, stage.deadline(_ASK_SECONDS))
        except StarRocksSinkError:
            if leader:
                raise
            silent += 1
            continue
        if answer.status == HTTPStatus.TEMPORARY_REDIRECT:
            verdict = _judge_target(stage, answer, "frontend")
            if verdict is not None:
                return verdict
            redirected += 1
            require(stage.send(request), "begin through a follower's redirect")
        else:
            require(read_reply(answer.status, answer.body), "begin")
            leading += 1
        require(stage.roll_back(label), "the rollback")
    return as_expected(
        f"{leading} frontend(s) answered as leader, {redirected} redirected to it"
        + (f"; {silent} of SHOW FRONTENDS cannot be reached from here" if silent else "")
    )


def _frontends(stage: Stage) -> Iterator[tuple[Address, bool]]:
    """Frontends of load_url (True), then further frontends of SHOW FRONTENDS that the options allow (False)."""
    options = stage.options
    yield from ((address, True) for address in options.frontends)
    rules = options.redirect_rules
    for row in stage.rows_if_allowed("SHOW FRONTENDS"):
        place = parse_location(f"{options.frontends[0].scheme}://{row.get('ip')}:{row.get('httpport')}")
        target = None if place is None else rules.rewrite(place)
        if target is not None and target not in options.frontends and rules.allows(target):
            yield target, False


def _redirect_target(stage: Stage, answer: HttpResponse) -> Address | None:
    """The address of a redirect, after the options' rewrites; None if the redirect names no usable host."""
    location = parse_location(answer.location)
    return None if location is None else stage.options.redirect_rules.rewrite(location)


def _judge_target(stage: Stage, answer: HttpResponse, role: str) -> Evidence | None:
    """The difference if the sink would not follow the redirect to a server of this `role`; else None."""
    target, rules = _redirect_target(stage, answer), stage.options.redirect_rules
    if target is None:
        return differs(f"a redirect to a {role} names no usable host", "Check the proxies in front of the frontends.")
    if rules.allows(target):
        return None
    return differs(
        f"the redirect leads to {target}, a {role} that no option names",
        f"If that server is yours, set {rules.option_line(target)}, or map it with redirect_map.",
    )


@CHECKS.expects("backend.redirect", "A load is redirected to a backend that options allow.", "1.2", "9")
def check_redirect(stage: Stage) -> Evidence:
    """Send an empty load to the leader: 307 must lead to an allowed backend."""
    with stage.transaction() as label:
        request = label.request(
            Operation.LOAD, table=stage.table("upserts"), headers=stage.options.load_headers(stage.table("upserts"))
        )
        answer, address = _ask_leader(stage, request)
        if answer.status != HTTPStatus.TEMPORARY_REDIRECT:
            raise Surprise(f"an empty load was answered {reply_text(read_reply(answer.status, answer.body))}")
        verdict = _judge_target(stage, answer, "backend")
        if verdict is not None:
            return verdict
        location = parse_location(answer.location)
        scheme = location.scheme if location else ""
        mapped = "" if _redirect_target(stage, answer) == location else ", rewritten"
        return as_expected(f"307 from {address.scheme} to {scheme}, to an allowed host{mapped}")


def _ask_leader(stage: Stage, request: Request) -> tuple[HttpResponse, Address]:
    """The leader's answer to a load without a body, and the leader's address."""
    address = stage.options.frontends[0]
    for _ in range(3):
        answer = stage.transport.ask(request, address, stage.deadline(_ASK_SECONDS))
        target = _redirect_target(stage, answer)
        leads_on = target is not None and target in [address for address, _ in _frontends(stage)]
        if answer.status != HTTPStatus.TEMPORARY_REDIRECT or not leads_on or target is None:
            return answer, address
        address = target
    return answer, address


@CHECKS.expects("server.generation", "A label is registered at its commit or at its first load.", "6.2", "10.1")
def check_generation(stage: Stage) -> Evidence:
    """Generation C registers a label at its first load, B at its commit."""
    with stage.transaction() as label:
        stage.must_load(label, "upserts", array({"id": 1, "note": "generation"}))
        state = stage.state(label)
    if state not in (LabelState.PREPARE, LabelState.UNKNOWN):
        return differs(
            f"an open label is {state.value if state else 'without a state'}",
            "Tell the project; the sink waits for VISIBLE and takes nothing else for proof.",
        )
    stage.generation = "C" if state is LabelState.PREPARE else "B"
    when = "first load" if stage.generation == "C" else "commit"
    return as_expected(f"generation {stage.generation}: a label is registered at its {when}")
