"""Checks of a label's end: what it answers, what the server says of rejected rows, long transactions, take-overs."""

from __future__ import annotations

import contextlib

from starrocks_txn_sink import errors
from starrocks_txn_sink.errors import StarRocksSinkError
from starrocks_txn_sink.operations.rehearsal.stage import (
    REPORT,
    Check,
    Finding,
    Stage,
    Surprise,
    array,
    as_expected,
    differs,
    harmless,
    left_out,
    said,
)
from starrocks_txn_sink.protocol import fencing, ledger, refusals
from starrocks_txn_sink.protocol.label import Label, LabelPrefix, run
from starrocks_txn_sink.protocol.ledger import Owner
from starrocks_txn_sink.protocol.wire import Operation, Status

_SETTLE_SECONDS = 5.0
_POLL_SECONDS = 0.1
_INNER_SECONDS = 300  # generation B ends a transaction then, whatever its timeout (wire contract 4.12)
_LEDGER_DECIDES = "the sink believes the ledger, not this answer"

# --- the end of a label ---


def check_list(stage: Stage) -> Finding:
    """The query with which a take-over finds what a dead writer left open."""
    with stage.transaction() as label:
        stage.loaded(label, "upserts", array({"id": 120}))
        began = stage.clock.monotonic()
        found = stage.ledger.execute(ledger.ListUnfinished(LabelPrefix(stage.job)), stage.deadline())
        seconds = stage.clock.monotonic() - began
    if label.name not in found:
        advice = "Let the user that loads see its own loads in information_schema.loads, and check the release."
        return differs("it lists nothing of an open label with a load", advice)
    return as_expected(f"listed, in {1000 * seconds:.0f} ms", list_seconds=seconds)


def check_states(stage: Stage) -> Finding:
    """States of a committed label's loads; some releases never move them on."""
    label, deadline = _committed(stage), stage.deadline(_SETTLE_SECONDS)
    while True:
        states = sorted({str(row["state"]) for row in stage.loads(label.name).values()})
        if states == ["FINISHED"]:
            return as_expected("FINISHED")
        if deadline.expired():
            break
        stage.clock.sleep(_POLL_SECONDS)
    if not states:
        return harmless("no rows", "the ledger decides what is visible")
    why = "a take-over asks for the state of each such label and leaves committed ones alone; 4.1.3 repairs it"
    return harmless(f"{', '.join(states)} after VISIBLE", why)


def _committed(stage: Stage) -> Label:
    if stage.committed is None:
        raise Surprise("no transaction was committed before")
    return stage.committed


def check_repeated_commit(stage: Stage) -> Finding:
    reply = stage.commit(_committed(stage))
    if reply.ok:
        return as_expected(said(reply))
    if stage.wanted.exactly_once:
        return harmless(said(reply), _LEDGER_DECIDES)
    return differs(said(reply), "Use exactly-once: a commit whose reply is lost could otherwise not be repeated.")


def check_late_rollback(stage: Stage) -> Finding:
    reply = stage.roll_back(_committed(stage))
    left = stage.count("upserts", 10, 19), stage.count("events", 10, 19)
    if left != (10, 10):
        return differs(f"{said(reply)}, and committed rows are gone", REPORT)
    if refusals.CANNOT_ABORT_VISIBLE in reply.message:
        return as_expected(said(reply))
    if stage.wanted.exactly_once:
        return harmless(f"{said(reply)}; the rows stay", _LEDGER_DECIDES)
    return differs(f"{said(reply)}; the rows stay", "Use exactly-once: the label's answers prove nothing here.")


def check_reuse(stage: Stage) -> Finding:
    """Whether the label of a committed and of a rolled-back transaction can be begun again."""
    with stage.transaction() as ended:
        stage.loaded(ended, "upserts", array({"id": 130}))
    free = []
    for label, how in ((_committed(stage), "committed"), (ended, "rolled back")):
        reply = stage.send(label.request(Operation.BEGIN, headers=stage.options.begin_headers()))
        if reply.status is not Status.LABEL_ALREADY_EXISTS:
            free.append(f"{how}: {said(reply)}")
        if reply.ok:
            stage.roll_back(label)
    if free:
        return harmless("; ".join(free), "the sink takes a new label for every attempt")
    return as_expected("LABEL_ALREADY_EXISTS for a committed label, and for a rolled-back one")


# --- rejected rows ---


def check_bad_row(stage: Stage) -> Finding:
    """The server's text for a row that it filters, its count, and its log."""
    with stage.transaction() as label:
        stage.loaded(label, "filled", array({"id": 140, "n": 1}, {"id": 141, "n": None}))
        reply = stage.commit(label)
        if reply.ok:
            return differs("a NULL in a NOT NULL column was committed", REPORT)
    row = stage.loads(label.name).get(stage.table("filled"), {})
    filtered = int(row.get("filtered_rows") or 0)
    lines = _tracking_lines(stage, str(row.get("tracking_sql") or ""))
    seen = f"FILTERED_ROWS {filtered}, {lines} line(s) of log; {said(reply)}"
    error = refusals.commit_error(reply, label.name)
    if not isinstance(error, errors.RowsRejected):
        return differs(
            seen, "Leave on_bad_rows=fail, and send this report: the sink does not read this text as bad rows."
        )
    if filtered != 1 or not lines:
        return harmless(seen, "the error then names no reason, and the text alone proves the bad row")
    return as_expected(seen)


def _tracking_lines(stage: Stage, statement: str) -> int:
    if not statement:
        return 0
    with contextlib.suppress(StarRocksSinkError):
        return sum(bool(str(next(iter(row.values()), ""))) for row in stage.rows(statement))
    return 0


def check_empty(stage: Stage) -> Finding:
    with stage.transaction() as label:
        stage.loaded(label, "upserts", array({"id": 150}))
        reply = stage.load(label, "events", [])
        reply = stage.commit(label) if reply.ok else reply
        if reply.ok:
            stage.await_visible(label)
            return harmless("it was committed", "the sink sends no empty load")
    error = refusals.commit_error(reply, label.name)
    if isinstance(error, errors.RowsRejected):
        return harmless(f"{said(reply)}: read as bad rows", "the sink sends no empty load")
    return as_expected(said(reply))


# --- long transactions, take-over ---


def check_slow(stage: Stage) -> Finding:
    seconds = stage.terms.slow_seconds
    if not stage.terms.slow:
        return left_out(f"--slow keeps a transaction open for {seconds:g} s")
    with stage.transaction(timeout=str(int(3 * seconds))) as label:
        stage.loaded(label, "upserts", array({"id": 160}), timeout=str(int(3 * seconds)))
        _wait(stage, seconds)
        reply = stage.load(label, "upserts", array({"id": 161}), timeout=str(int(3 * seconds)))
        reply = stage.commit(label) if reply.ok else reply
        if reply.ok:
            stage.await_visible(label)
            return as_expected(f"committed after {seconds:g} s")
    if stage.wanted.timeout <= _INNER_SECONDS:
        return harmless(said(reply), f"timeout is {stage.wanted.timeout}: a transaction is not open for so long")
    return differs(said(reply), f"Set timeout={_INNER_SECONDS}: the sink then commits after 80 % of it.")


def _wait(stage: Stage, seconds: float) -> None:
    deadline = stage.deadline(seconds)
    while not deadline.expired():
        stage.tell(f"transaction.slow: {deadline.remaining():.0f} s to go")
        stage.clock.sleep(min(10.0, deadline.remaining()))


def check_take_over(stage: Stage) -> Finding:
    """A second writer takes the job over while the first one's transaction is open."""
    first = _take_over(stage)
    with stage.transaction() as label:
        stage.loaded(label, "upserts", array({"id": 170}))
        began = stage.clock.monotonic()
        _take_over(stage)
        seconds = stage.clock.monotonic() - began
        try:
            run(
                fencing.check_owner(stage.job, first.owner, first.owner.token, stage.rng),
                stage.transport,
                stage.clock,
                stage.deadline(),
                stage.ledger,
            )
        except errors.Fenced:
            fenced = True
        else:
            fenced = False
        late = stage.commit(label)
    if late.ok or stage.count("upserts", 170, 170):
        return differs(f"the first writer's commit was answered {said(late)}", REPORT)
    if not fenced:
        return differs("the first writer still reads itself as the owner", REPORT)
    return as_expected(
        f"in {1000 * seconds:.0f} ms; the first writer's label is rolled back, and it is no owner any more",
        take_over_seconds=seconds,
    )


def _take_over(stage: Stage) -> fencing.TakenOver:
    scope = fencing.Scope(stage.job, stage.database, Owner("", stage.epoch, "rehearsal"))
    steps = fencing.take_over(scope, fencing.fresh_tokens(stage.epoch, 0, stage.rng), stage.rng)
    return run(steps, stage.transport, stage.clock, stage.deadline(), stage.ledger)


CHECKS = (
    Check("label.listed", "The take-over's query lists an open label.", ("6.5",), check_list),
    Check("label.states", "Loads of a visible label are FINISHED.", ("6.5", "10.6"), check_states),
    Check("commit.repeated", "A repeated commit is OK.", ("3.2",), check_repeated_commit),
    Check("commit.rolled_back", "A rollback after the commit is refused.", ("3.2", "6.6"), check_late_rollback),
    Check("label.reused", "An ended label cannot be begun again.", ("3.2",), check_reuse),
    Check(
        "reject.bad_row",
        "A bad row fails the commit, and is counted and logged.",
        ("4.9", "5.10", "7.5"),
        check_bad_row,
    ),
    Check("reject.empty", "An empty load fails the commit, and is no bad row.", ("4.9", "10.4"), check_empty),
    Check("transaction.slow", "A transaction may be open for as long as its timeout.", ("4.12", "10.7"), check_slow),
    Check("takeover", "A second writer ends the first one's transactions.", ("3.2", "10.5"), check_take_over),
)
