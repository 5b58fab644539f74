"""Checks of rejected rows: what the sink makes of a refused commit, by the very code that a driver runs.

The server's words and views matter only as far as they decide whether the sink fails, waits or sets rows aside.
"""

from __future__ import annotations

from starrocks_txn_ops.rehearsal.findings import Checks, Evidence, as_expected, differs, harmless
from starrocks_txn_ops.rehearsal.stage import Stage, array
from starrocks_txn_ops.rehearsal.transactions import REPORT
from starrocks_txn_sink.coordinator import model
from starrocks_txn_sink.errors import CommitFailed, RowsRejected, StarRocksSinkError
from starrocks_txn_sink.protocol.label import Aborted, Label
from starrocks_txn_sink.writer.rejections import Explainer
from starrocks_txn_sink.writer.runner import Performer

CHECKS = Checks()

_QUICK_SECONDS = 5.0
"""Of a refused commit with its explanation: a quarantine meets a dozen of them to find one row of a micro-batch."""
_AWAY = (
    "Leave on_bad_rows at 'fail', watch for outage.waiting with the code commit_failed, and send this report: on this "
    "release the sink takes bad rows for the server's own trouble, and waits until batch_deadline."
)
_INVENTED = (
    "Leave on_bad_rows at 'fail', and send this report: on this release a quarantine would dead-letter good source "
    "transactions while the server is in trouble."
)


def refusal(stage: Stage, label: Label) -> tuple[StarRocksSinkError | None, float]:
    """Commit as a driver does: the error that a query would get, None after a commit, and the seconds."""
    explainer = Explainer(stage.options.database, stage.leader.rows, stage.transport.error_log)
    performer = Performer(stage.options, stage.transport, stage.clock, stage.deadline(), stage.rng, explainer=explainer)
    began = stage.clock.monotonic()
    outcome = performer(model.CommitAction(label.name))
    seconds = stage.clock.monotonic() - began
    return (outcome.error if isinstance(outcome, Aborted) else None), seconds


def _load_good_rows(stage: Stage, label: Label, first: int) -> None:
    """Rows for the other tables: with that of the bad row there are four, as a transaction with a ledger has."""
    stage.must_load(label, "upserts", array({"id": first}))
    stage.must_load(label, "events", array({"id": first}))
    stage.must_load(label, "others", array({"id": first}))


def _judge(stage: Stage, error: StarRocksSinkError | None, seconds: float, *, logged: bool) -> Evidence:
    table = stage.table("filled")
    if error is None:
        return differs("a NULL in a NOT NULL column was committed, or its outcome is unknown", REPORT)
    what = f"{error.code} after {seconds:.1f} s: {' '.join(error.message.split()).replace(stage.job, 'job')[:200]}"
    metrics = {"explain_seconds": seconds}
    if not isinstance(error, RowsRejected):
        return differs(what, _AWAY, **metrics)
    if error.context.get("table") != table or "1 row " not in error.message:
        return differs(what, "Send this report: the error names no table, or a wrong count.", **metrics)
    if seconds > _QUICK_SECONDS:
        advice = "Expect a quarantine to take as long for each of its steps, and send this report."
        return differs(what, advice, **metrics)
    if logged and "column n" not in error.message:
        return harmless(what, "table and count are right; the row's column has to be looked for", **metrics)
    return as_expected(what, **metrics)


@CHECKS.expects(
    "reject.bad_row", "A bad row among four tables fails the commit as bad, with table, count and reason.", "4.9", "7.5"
)
def check_bad_row(stage: Stage) -> Evidence:
    """Load a NULL into a NOT NULL column beside a good row, with good rows of three more tables."""
    with stage.transaction() as label:
        _load_good_rows(stage, label, 140)
        stage.must_load(label, "filled", array({"id": 140, "n": 1}, {"id": 141, "n": None}))
        error, seconds = refusal(stage, label)
    return _judge(stage, error, seconds, logged=True)


@CHECKS.expects(
    "reject.alone", "A bad row that is alone in its table fails the commit as bad, with table and count.", "4.9", "5.10"
)
def check_bad_row_alone(stage: Stage) -> Evidence:
    """No row of the table is left, so the server has no log of it: each search for a bad row ends here."""
    with stage.transaction() as label:
        _load_good_rows(stage, label, 142)
        stage.must_load(label, "filled", array({"id": 142, "n": None}))
        error, seconds = refusal(stage, label)
    return _judge(stage, error, seconds, logged=False)


@CHECKS.expects("reject.empty", "A commit that fails without a bad row is no rejection.", "4.9")
def check_empty(stage: Stage) -> Evidence:
    """An empty load stands in for the server's own trouble, which has the same words."""
    with stage.transaction() as label:
        stage.must_load(label, "upserts", array({"id": 150}))
        stage.load(label, "events", [])
        error, seconds = refusal(stage, label)
    if error is None:
        return harmless("it was committed", "the sink sends no empty load")
    what = f"{error.code} after {seconds:.1f} s: {' '.join(error.message.split()).replace(stage.job, 'job')[:160]}"
    if isinstance(error, RowsRejected):
        return differs(what, _INVENTED)
    if not isinstance(error, CommitFailed):
        return harmless(what, "the sink sends no empty load")
    return as_expected(what)
