"""Writes rows while a job is held (`protocol.hold`): one StarRocks transaction, with a row of the ledger."""

from __future__ import annotations

import contextlib
import random
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from starrocks_txn_ops.own_loads import carry_out, coordinator_of, primary_keys, table_loads
from starrocks_txn_sink.clock import Clock, Deadline
from starrocks_txn_sink.coordinator.coordinator import LanesResult, perform_all
from starrocks_txn_sink.coordinator.model import LaneShare, Receipt
from starrocks_txn_sink.coordinator.ownership import ReplayOwnership
from starrocks_txn_sink.errors import Fenced, QueryRefused, StarRocksSinkError
from starrocks_txn_sink.http import HttpTransport
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol import hold, label as protocol
from starrocks_txn_sink.protocol.dead_letters import DeadLetterRow
from starrocks_txn_sink.protocol.label import Label, RetryPolicy, Steps, labels
from starrocks_txn_sink.protocol.ledger import HOLD, NewToken, Owner, check_owner, fresh_tokens
from starrocks_txn_sink.rows.unchanged import UnchangedValues
from starrocks_txn_sink.sql.connection import LeaderConnection, SqlLedger
from starrocks_txn_sink.writer.known_columns import KnownColumns
from starrocks_txn_sink.writer.rejections import Explainer
from starrocks_txn_sink.writer.runner import Performer

REPAIRED = "repaired"
"""Name of the ledger's marker with the label of the last repair."""


@dataclass(slots=True)
class Holder:
    """Holds the job of `options`, each time for at most so many seconds."""

    options: SinkOptions
    connection: LeaderConnection
    seconds: int
    clock: Clock
    rng: random.Random = field(default_factory=random.Random)

    @contextlib.contextmanager
    def hold(self) -> Iterator[Held]:
        """The job is held in the block. Raises as a take-over does, JobMoved for a job that is closed."""
        job, ledger = str(self.options.job), SqlLedger(self.connection, self.options.database)
        tokens = fresh_tokens(HOLD, 0, random.SystemRandom())
        with contextlib.closing(HttpTransport(self.options)) as transport:

            def run(steps: Steps[protocol.Result]) -> protocol.Result:
                return protocol.run(steps, transport, self.clock, deadline, ledger)

            deadline = Deadline.after(float(self.seconds), self.clock)
            owner = run(hold.hold(job, self.options.database, self.seconds, tokens, self.rng)).owner
            held = Held(self, transport, ledger, owner, tokens, deadline)
            try:
                yield held
            finally:
                deadline = Deadline.after(10.0, self.clock)
                with contextlib.suppress(StarRocksSinkError):  # the hold ends by itself
                    if not held.unanswered:
                        run(hold.release(job, owner, self.rng))


@dataclass(slots=True)
class Held:
    """A job that is held. Each method raises Fenced if the job has been taken back.

    `unanswered`: nobody knows whether StarRocks still carries a DELETE out, so the hold is left to end by itself.
    """

    holder: Holder
    transport: HttpTransport
    ledger: SqlLedger
    owner: Owner
    new_token: NewToken
    deadline: Deadline
    unanswered: bool = False

    def check(self) -> None:
        """Whether the job is still held: its driver has written nothing since the hold began."""
        steps = check_owner(str(self.holder.options.job), self.owner, self.holder.rng)
        protocol.run(steps, self.transport, self.holder.clock, self.deadline, self.ledger)

    def delete(self, carry_out: Callable[[], object]) -> None:
        """Carry a DELETE out, which belongs to no commit that a check could refuse.

        Only time keeps it in front of what the job writes next: it is sent while half of the hold is left, and the job
        is not given back without its answer. Raises Fenced in the second half, too.
        """
        self.check()
        if self.deadline.remaining() < self.holder.seconds / 2:
            raise Fenced("Half of the hold was over, and rows were still to be deleted.")
        self.unanswered = True
        try:
            carry_out()
        except QueryRefused:
            self.unanswered = False
            raise
        self.unanswered = False

    def write(self, rows: Sequence[DeadLetterRow]) -> str:
        """Write rows of several tables in one StarRocks transaction; returns its label when they are visible."""
        holder, options = self.holder, self.holder.options
        connection, job = holder.connection, str(options.job)
        keys = primary_keys(connection, options, self.deadline)
        known_columns = KnownColumns(connection, options.database)
        unchanged = UnchangedValues(
            options.database,
            lambda sql, values: connection.query(sql, values, self.deadline),
            keys,
            columns_now=lambda table: known_columns.columns(table, True, self.deadline),
            decoded=options.decoded,
        )
        loads = table_loads(options, [*rows], keys, unchanged)
        ownership = ReplayOwnership(job, options.database, self.owner, self.new_token, lambda: "", marker=REPAIRED)
        names = labels(job, HOLD, 0, secrets.randbits(62), 1)
        coordinator = coordinator_of(options, names, ownership, self.deadline, holder.rng)

        def load(label: str, rng: random.Random) -> Steps[LanesResult]:
            for table, body, headers in loads:
                yield from protocol.load(Label(options.database, label), table, body, headers, RetryPolicy(), rng)
            receipt = Receipt(label, None, job, 0, (), (), len(loads), attempts=1, retries=0, recycled=False)
            return LanesResult([LaneShare((receipt,))])

        explainer = Explainer(options.database, connection.rows, self.transport.error_log, options.show_rejected_values)
        performer = Performer(
            options,
            self.transport,
            holder.clock,
            self.deadline,
            holder.rng,
            ownership=ownership,
            ledger=self.ledger,
            explainer=explainer,
        )
        (receipt,) = perform_all(coordinator.write(), partial(carry_out, performer, load))
        return receipt.label
