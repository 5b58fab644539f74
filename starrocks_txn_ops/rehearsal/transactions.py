"""Checks of one transaction: its loads, and the end of its label.

Loads: accepted content, one load of a table at a time, order, bodies that break off. The end: answers about an ended
label, long transactions, take-overs.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from starrocks_txn_ops.rehearsal.findings import Checks, Evidence, Verdict, as_expected, differs, harmless, left_out
from starrocks_txn_ops.rehearsal.stage import Stage, Surprise, array, reply_text, require
from starrocks_txn_sink import errors
from starrocks_txn_sink.errors import ReplyLost, StarRocksSinkError
from starrocks_txn_sink.protocol import fencing, ledger, refusals
from starrocks_txn_sink.protocol.label import Label, LabelPrefix
from starrocks_txn_sink.protocol.ledger import Owner
from starrocks_txn_sink.protocol.wire import Operation, Status
from starrocks_txn_sink.rows.body import load_body

CHECKS = Checks()

REPORT = "Send this report to the project: the sink's promise does not hold on this release."
"""Advice for a difference that no option cures."""

LARGE_TEXT = 1_000_000
_HELD_SECONDS = 1.0
_ONE_AT_A_TIME = "the sink sends one load of a table at a time"
_PAUSES = (0.2, 0.8, 3.2)  # seconds
_REFUSED_BYTES = 200_000
"""Of the load that is refused before its body is read: what is left of a smaller one may have come with the headers."""

# --- loads ---


@CHECKS.expects("load.two_tables", "Rows of two tables become visible with their commit.", "4.3", "4.11", "5.4")
def check_two_tables(stage: Stage) -> Evidence:
    """Arrays with the sink's headers, into two tables, committed together."""
    rows = [{"id": number, "note": "first", "n": number, "kind": "a"} for number in range(10, 20)]
    with stage.transaction() as label:
        stage.must_load(label, "upserts", array(*rows))
        stage.must_load(label, "events", array(*({"id": row["id"], "note": "first"} for row in rows)))
        early = stage.count("upserts", 10, 19) + stage.count("events", 10, 19)
        if early:
            return differs(f"{early} rows are visible before the commit", REPORT)
        reply = require(stage.commit(label), "the commit")
        seconds = stage.await_visible(label)
    counts = stage.count("upserts", 10, 19), stage.count("events", 10, 19)
    if counts != (10, 10):
        return differs(f"{counts[0]} and {counts[1]} of 10 rows each are visible after VISIBLE", REPORT)
    stage.committed = label
    return as_expected(
        f"{reply_text(reply)}; VISIBLE {1000 * seconds:.0f} ms after the commit's reply", visible_seconds=seconds
    )


@CHECKS.expects("load.lz4", "A body may be an LZ4 frame.", "5.2")
def check_compressed(stage: Stage) -> Evidence:
    """Load two rows in one frame, and count them."""
    piece = memoryview(b"".join(b"," + row for row in (b'{"id":30,"note":"lz4"}', b'{"id":31,"note":"lz4"}')))
    stage.write(("upserts", load_body([piece], "lz4_frame")), compression="lz4_frame")
    count = stage.count("upserts", 30, 31)
    if count != 2:
        return differs(f"{count} of 2 rows are there", "Set compression=none or gzip.")
    return as_expected("2 rows are there")


@CHECKS.expects("load.delete", "__op 1 deletes, 0 upserts.", "5.6")
def check_delete(stage: Stage) -> Evidence:
    """Delete one of two rows and replace the other, in one load."""
    stage.write(("upserts", array({"id": 40, "note": "stays"}, {"id": 41, "note": "goes"})))
    stage.write(("upserts", array({"id": 41, "note": "goes", "__op": 1}, {"id": 40, "note": "new", "__op": 0})))
    if stage.count("upserts", 41, 41):
        return differs("the row is still there", REPORT)
    if stage.content("upserts", "note", 40) != "new":
        return differs("an upsert in the same load did not replace its row", REPORT)
    return as_expected("1 deletes, 0 upserts")


@CHECKS.expects("load.missing_key", "A missing JSON key is NULL.", "5.4")
def check_missing_key(stage: Stage) -> Evidence:
    """Leave out a column with a DEFAULT; the DEFAULT instead of NULL is harmless."""
    stage.write(("upserts", array({"id": 50, "note": "no kind"})))
    kind = stage.content("upserts", "kind", 50)
    if kind is None:
        return as_expected("NULL, though the column has a DEFAULT")
    return harmless(f"{kind!r}, the column's DEFAULT", "columns that a frame leaves out then get their DEFAULT")


@CHECKS.expects("load.key_only_delete", "A delete needs a value for each NOT NULL column.", "5.6")
def check_key_only_delete(stage: Stage) -> Evidence:
    """Delete by the key alone, which is to be refused, and with a value for the NOT NULL column."""
    stage.write(("filled", array({"id": 60, "n": 1}, {"id": 61, "n": 1})))
    with stage.transaction() as label:
        stage.must_load(label, "filled", array({"id": 60, "__op": 1}))
        reply = stage.commit(label)
    stage.write(("filled", array({"id": 61, "n": 0, "__op": 1})))
    if stage.count("filled", 61, 61):
        return differs("a delete with a value for each NOT NULL column does not delete", REPORT)
    if reply.status is Status.OK:
        return harmless("a delete with the key alone is taken", "the sink sends values for the other columns as well")
    return as_expected("refused; with values for the NOT NULL columns it deletes")


@CHECKS.expects("load.strict", "With strict_mode a value that does not fit is refused.", "5.7", "7.4")
def check_strict(stage: Stage) -> Evidence:
    """Load a text into a column of numbers; the load or the commit may be what is refused."""
    with stage.transaction() as label:
        reply = stage.load(label, "upserts", array({"id": 70, "n": "not a number"}))
        reply = stage.commit(label) if reply.status is Status.OK else reply
    if reply.status is Status.OK:
        return differs("the row was committed, with NULL for the value", "Compare source and tables after each load.")
    return as_expected("the commit is refused")


@CHECKS.expects("load.large_row", "A row of one megabyte is taken.", "5.9")
def check_large_row(stage: Stage) -> Evidence:
    """Load one value of LARGE_TEXT bytes, and ask for its length."""
    stage.write(("upserts", array({"id": 80, "big": "x" * LARGE_TEXT})))
    length = int(stage.content("upserts", "length(big)", 80) or 0)
    if length != LARGE_TEXT:
        return differs(f"{length} of {LARGE_TEXT} bytes are there", "Keep rows below that size.")
    return as_expected("one million bytes in one value")


# --- one load at a time, broken bodies ---


@dataclass(eq=False)
class HeldBody:
    """A body that sets `halfway` in its middle, and then waits for `go`, or with `breaks` raises an error."""

    data: bytes
    breaks: bool = False
    halfway: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[bytes]:
        half = len(self.data) // 2
        yield self.data[:half]
        self.halfway.set()
        if self.breaks:
            raise ReplyLost("The rehearsal broke a body off.")
        self.go.wait(10 * _HELD_SECONDS)
        yield self.data[half:]


def _patiently(look: Callable[[Stage, float], Evidence]) -> Callable[[Stage], Evidence]:
    """Repeat a look with longer pauses as long as its outcome is HARMLESS.

    Half a body needs some time to arrive, and a slow backend may serve the next load first. That is no difference.
    """

    def check(stage: Stage) -> Evidence:
        for pause in _PAUSES:
            evidence = look(stage, pause)
            if evidence.verdict is not Verdict.HARMLESS:
                break
        return evidence

    return check


@CHECKS.expects("load.busy", "A second load of a table meets TXN_IN_PROCESSING, and can be repeated.", "2.5", "4.5")
@_patiently
def check_busy(stage: Stage, pause: float) -> Evidence:
    """Load into a table while half a body of another load hangs, `pause` seconds after that; then repeat the load."""
    held_body = HeldBody(array({"id": 100, "note": "first"})[0])
    with stage.transaction() as label, ThreadPoolExecutor(1, "rehearsal") as pool:
        first = pool.submit(stage.load, label, "upserts", held_body)
        try:
            held_body.halfway.wait(_HELD_SECONDS)
            stage.clock.sleep(pause)
            second = stage.load(label, "upserts", array({"id": 101, "big": "x" * _REFUSED_BYTES}))
        finally:
            held_body.go.set()
        require(first.result(), "the load that was first")
        if second.status is not Status.TXN_IN_PROCESSING:
            return harmless(f"the second load was answered {reply_text(second)}", _ONE_AT_A_TIME)
        try:
            third = stage.load(label, "upserts", array({"id": 102, "big": "x" * _REFUSED_BYTES}))
        except StarRocksSinkError as error:  # of the connection that the refused load has used
            return differs(f"{reply_text(second)}; its repetition: {error.code}: {error.message[:160]}", REPORT)
        outcome = stage.finish(label, third)
    row_counts = stage.count("upserts", 101, 101), stage.count("upserts", 102, 102)
    if row_counts != (0, 1) or outcome.status is not Status.OK:
        return differs(
            f"refused as in processing, but then: {reply_text(outcome)}; {row_counts[0]} rows of the refused load and "
            f"{row_counts[1]} of its repetition are visible",
            REPORT,
        )
    return as_expected(f"{reply_text(second)}; nothing of it was taken, and its repetition was")


@CHECKS.expects("load.order", "The last change of a key in a transaction counts.", "4.10")
def check_order(stage: Stage) -> Evidence:
    """Two loads that change keys twice: upserts, and an upsert with its delete."""
    with stage.transaction() as label:
        stage.must_load(
            label, "upserts", array({"id": 90, "note": "1"}, {"id": 91, "note": "1"}, {"id": 90, "note": "2"})
        )
        second = {"id": 90, "note": "3"}, {"id": 91, "note": "1", "__op": 1}, {"id": 90, "note": "4"}
        stage.must_load(label, "upserts", array(*second))
        require(stage.finish(label), "the commit")
    note = stage.content("upserts", "note", 90)
    wrong = [f"the row has change {note} of 4"] if note != "4" else []
    wrong += ["a deleted row is there"] if stage.count("upserts", 91, 91) else []
    if not wrong:
        return as_expected("the last change of a key counts")
    if stage.wanted.compact:
        return harmless(" and ".join(wrong), "the sink sends one row per key and transaction (compact)")
    return differs(" and ".join(wrong), "Leave compact on: the sink then sends one row per key and transaction.")


@CHECKS.expects("load.cut", "A label with half a body does not commit.", "4.8")
@_patiently
def check_cut(stage: Stage, pause: float) -> Evidence:
    """Break a body off; see what the commit of another load contains, and that a rollback leaves nothing."""
    with stage.transaction() as label:
        _break_off(stage, label, {"id": 110, "note": "cut"})
        stage.clock.sleep(pause)
        reply = stage.load(label, "upserts", array({"id": 111, "note": "after"}))
        outcome = stage.finish(label, reply)
    counts = stage.count("upserts", 110, 110), stage.count("upserts", 111, 111)
    with stage.transaction() as label:
        stage.must_load(label, "upserts", array({"id": 112, "note": "before"}))
        _break_off(stage, label, {"id": 113, "note": "cut"})
        stage.clock.sleep(pause)
        end = stage.roll_back(label)
    if end.status is not Status.OK or stage.count("upserts", 112, 113):
        return differs(f"the rollback after it: {reply_text(end)}", REPORT)
    if outcome.status is Status.OK:
        content = "the next load alone" if counts == (0, 1) else f"{counts[0]} and {counts[1]} rows of both loads"
        return harmless(f"a commit after it holds {content}", "the sink rolls back after every broken load")
    return as_expected(
        f"a label with half a body cannot commit ({reply_text(outcome)[:80]}); its rollback leaves nothing"
    )


def _break_off(stage: Stage, label: Label, row: dict[str, object]) -> None:
    try:
        reply = stage.load(label, "upserts", HeldBody(array(row)[0], breaks=True))
    except ReplyLost:
        return
    raise Surprise(f"half a body was answered {reply_text(reply)}")


_POLL_SECONDS = 0.1
_INNER_SECONDS = 300  # after them generation B ends a transaction, whatever its timeout (wire contract 4.12)
_LEDGER_DECIDES = "the sink believes the ledger, not this answer"

# --- the end of a label ---


@CHECKS.expects("label.listed", "The take-over's query lists an open label.", "6.5")
def check_list(stage: Stage) -> Evidence:
    """Run the query with which a take-over finds the open labels of a dead writer."""
    with stage.transaction() as label:
        stage.must_load(label, "upserts", array({"id": 120}))
        began = stage.clock.monotonic()
        labels = stage.ledger.execute(ledger.ListUnfinished(LabelPrefix(stage.job)), stage.deadline())
        seconds = stage.clock.monotonic() - began
    if label.name not in labels:
        advice = "Let the user that loads see its own loads in information_schema.loads, and check the release."
        return differs("it lists nothing of an open label with a load", advice)
    return as_expected(f"listed, in {1000 * seconds:.0f} ms", list_seconds=seconds)


@CHECKS.expects("label.states", "Loads of a visible label are FINISHED.", "6.5", "10.6")
def check_states(stage: Stage) -> Evidence:
    """Read the states of a committed label's loads, which some releases never change to FINISHED."""
    label, deadline = _committed(stage), stage.deadline(stage.terms.settle_seconds)
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


@CHECKS.expects("commit.repeated", "A repeated commit is OK.", "3.2")
def check_repeated_commit(stage: Stage) -> Evidence:
    """Commit the label of `check_two_tables` again; with exactly-once a refusal is harmless."""
    reply = stage.commit(_committed(stage))
    if reply.status is Status.OK:
        return as_expected(reply_text(reply))
    if stage.wanted.exactly_once:
        return harmless(reply_text(reply), _LEDGER_DECIDES)
    return differs(reply_text(reply), "Use exactly-once: a commit whose reply is lost could otherwise not be repeated.")


@CHECKS.expects("commit.rolled_back", "A rollback after the commit is refused.", "3.2", "6.6")
def check_late_rollback(stage: Stage) -> Evidence:
    """Roll the label of `check_two_tables` back, and count its rows: they have to stay."""
    reply = stage.roll_back(_committed(stage))
    counts = stage.count("upserts", 10, 19), stage.count("events", 10, 19)
    if counts != (10, 10):
        return differs(f"{reply_text(reply)}, and committed rows are gone", REPORT)
    if refusals.CANNOT_ABORT_VISIBLE in reply.message:
        return as_expected(reply_text(reply))
    if stage.wanted.exactly_once:
        return harmless(f"{reply_text(reply)}; the rows stay", _LEDGER_DECIDES)
    return differs(f"{reply_text(reply)}; the rows stay", "Use exactly-once: the label's answers prove nothing here.")


@CHECKS.expects("label.reused", "An ended label cannot be begun again.", "3.2")
def check_reuse(stage: Stage) -> Evidence:
    """Whether the label of a committed and of a rolled-back transaction can be begun again."""
    with stage.transaction() as transaction:
        stage.must_load(transaction, "upserts", array({"id": 130}))
    free = []
    for label, how in ((_committed(stage), "committed"), (transaction, "rolled back")):
        reply = stage.send(label.request(Operation.BEGIN, headers=stage.options.begin_headers()))
        if reply.status is not Status.LABEL_ALREADY_EXISTS:
            free.append(f"{how}: {reply_text(reply)}")
        if reply.status is Status.OK:
            stage.roll_back(label)
    if free:
        return harmless("; ".join(free), "the sink takes a new label for every attempt")
    return as_expected("LABEL_ALREADY_EXISTS for a committed label, and for a rolled-back one")


# --- long transactions, take-over ---


@CHECKS.expects("transaction.slow", "A transaction may be open for as long as its timeout.", "4.12", "10.7")
def check_slow(stage: Stage) -> Evidence:
    """Keep a transaction open for the seconds of the terms, beyond the inner timeout of B; only with `--slow`."""
    seconds = stage.terms.slow_seconds
    if not stage.terms.slow:
        return left_out(f"--slow keeps a transaction open for {seconds:g} s")
    timeout = str(int(3 * seconds))
    with stage.transaction(timeout=timeout) as label:
        stage.must_load(label, "upserts", array({"id": 160}), timeout=timeout)
        _wait(stage, seconds)
        late = stage.load(label, "upserts", array({"id": 161}), timeout=timeout)
        reply = stage.finish(label, late)
        if reply.status is Status.OK:
            return as_expected(f"committed after {seconds:g} s")
    if stage.wanted.timeout <= _INNER_SECONDS:
        return harmless(reply_text(reply), f"timeout is {stage.wanted.timeout}: a transaction is not open for so long")
    return differs(reply_text(reply), f"Set timeout={_INNER_SECONDS}: the sink then commits after 80 % of it.")


def _wait(stage: Stage, seconds: float) -> None:
    deadline = stage.deadline(seconds)
    while not deadline.expired():
        stage.tell(f"transaction.slow: {deadline.remaining():.0f} s to go")
        stage.clock.sleep(min(10.0, deadline.remaining()))


@CHECKS.expects("takeover", "A second writer ends the first one's transactions.", "3.2", "10.5")
def check_take_over(stage: Stage) -> Evidence:
    """A second writer takes the job over while the first one's transaction is open."""
    first = _take_over(stage)
    with stage.transaction() as label:
        stage.must_load(label, "upserts", array({"id": 170}))
        began = stage.clock.monotonic()
        _take_over(stage)
        seconds = stage.clock.monotonic() - began
        fenced = False
        try:
            stage.run(ledger.check_owner(stage.job, first.owner, stage.rng))
        except errors.Fenced:
            fenced = True
        late = stage.commit(label)
    if late.status is Status.OK or stage.count("upserts", 170, 170):
        return differs(f"the first writer's commit was answered {reply_text(late)}", REPORT)
    if not fenced:
        return differs("the first writer still reads itself as the owner", REPORT)
    return as_expected(
        f"in {1000 * seconds:.0f} ms; the first writer's label is rolled back, and it is no owner any more",
        take_over_seconds=seconds,
    )


def _take_over(stage: Stage) -> fencing.TakenOver:
    scope = fencing.Scope(stage.job, stage.database, Owner("", stage.epoch, "rehearsal"))
    return stage.run(fencing.take_over(scope, ledger.fresh_tokens(stage.epoch, 0, stage.rng), stage.rng))
