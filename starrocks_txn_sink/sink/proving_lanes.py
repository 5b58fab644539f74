"""`ProvingLanes`: the driver's part of a micro-batch whose lanes assemble whole source transactions together.

Under the driver's label a first Spark job brings the lanes' proofs, the driver judges them, and a second job loads
(`assembler.verified.together`). If the label fails, only the second job runs again. To the coordinator the lanes are
one: it gets one share, whose positions are those of the source.

One lane takes the micro-batch instead, as if there were no others, where lanes cannot: the label got too old (a lane
that stops would tear source transactions), a quarantine looks for rejected rows, rows have to be compared with their
copies, or two lanes have loaded rows of one key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from starrocks_txn_sink.assembler.rules.spill import SpillStorage
from starrocks_txn_sink.assembler.verified.rules import VerifiedPolicy
from starrocks_txn_sink.assembler.verified.together import JudgedTogether, OneLaneNeeded, judge_together, read_proof
from starrocks_txn_sink.coordinator.coordinator import LaneShare
from starrocks_txn_sink.coordinator.model import Ints, PositionSpan
from starrocks_txn_sink.coordinator.quarantine import EVERYTHING
from starrocks_txn_sink.errors import StarRocksSinkError
from starrocks_txn_sink.rows.segments import BatchRows, Replay
from starrocks_txn_sink.rows.shared_keys import find_shared
from starrocks_txn_sink.writer.assembling import AssemblySpec
from starrocks_txn_sink.writer.event_reader import truncate_notices
from starrocks_txn_sink.writer.messages import (
    CarryOver,
    LaneKeys,
    LaneProof,
    LaneReport,
    Message,
    OrderViolation,
    TablesLack,
    of_kind,
)
from starrocks_txn_sink.writer.task import LaneTask

Verdicts = JudgedTogether
Prove = Callable[[LaneTask], Sequence[Message]]
Load = Callable[[LaneTask, Verdicts], Sequence[Message]]
_MOST_CUTS: Final = 100  # as a lane reports them


@dataclass(slots=True)
class ProvingLanes:
    """Runs the lanes of one micro-batch; `prove` and `load` are its two Spark jobs.

    `lane_of` says which lane reads an origin. `storage` has the events that wait. `unordered` says of a table whether
    the order of its rows does not matter, None if it is not known. After a result with an OrderViolation one lane has
    to take the micro-batch, and with `keys_meet` all further ones.
    """

    prove: Prove
    load: Load
    assembly: AssemblySpec
    lane_of: Callable[[str], int]
    storage: Callable[[], SpillStorage]
    may_meet: Callable[[str], bool]
    keys_meet: bool = False
    _judged: JudgedTogether | None = None
    _malformed: int = 0
    _truncates: Counter[str] = field(default_factory=Counter)

    def run(self, task: LaneTask) -> list[Message]:
        """Run the lanes under a label, for the first time or again."""
        if task.part != EVERYTHING:
            return [OrderViolation("a quarantine looks for the rows that the server rejects")]
        if self._judged is None:
            messages = self.prove(task)
            proofs = of_kind(messages, LaneProof)
            if len(proofs) < len(self.assembly.ranges):
                return _of_failed(of_kind(messages, LaneReport))
            try:
                self._judged = self._judge(proofs)
            except OneLaneNeeded as needed:
                return [OrderViolation(str(needed))]
        return self._join(task, self._judged, self.load(replace(task, together=True), self._judged))

    def _judge(self, proofs: Sequence[LaneProof]) -> JudgedTogether:
        assert isinstance(self.assembly.policy, VerifiedPolicy)
        self._malformed = sum(proof.malformed for proof in proofs)
        self._truncates = sum((Counter(proof.truncates) for proof in proofs), Counter())
        by_lane = [
            {name: read_proof(content) for name, content in proof.content.items()}
            for proof in sorted(proofs, key=lambda proof: proof.lane)
        ]
        storage = self.storage()
        try:
            return judge_together(
                self.assembly.policy, self.assembly.carried, storage, self.assembly.now, by_lane, self.lane_of
            )
        finally:
            storage.close()

    def _join(self, task: LaneTask, judged: JudgedTogether, messages: Sequence[Message]) -> list[Message]:
        """The messages of the lanes as those of one lane."""
        shares = of_kind(messages, LaneShare)
        reports = [  # a lane does not know whether another one has the position of the ledger
            replace(report, work=replace(report.work, skips={})) for report in of_kind(messages, LaneReport)
        ]
        lacks = of_kind(messages, TablesLack)
        others: list[Message] = [*reports, *lacks]
        if len(shares) < len(judged.verdicts):
            return others if lacks else _of_failed(reports)
        if any(share.stopped for share in shares):
            return [OrderViolation("the label got too old before all lanes had loaded their rows"), *others]
        table = self._shared_table(shares, of_kind(messages, LaneKeys))
        if table is not None:
            self.keys_meet = True
            return [OrderViolation(f"two lanes have rows of one key of {table}, or nobody can say"), *others]
        carried = of_kind(messages, CarryOver)
        joined = CarryOver(
            judged.carried([share.partitions for share in carried]),
            judged.flows,
            (*judged.notices, *truncate_notices(self._truncates)),
            {name: content for share in carried for name, content in share.inline.items()},
            malformed=self._malformed,
        )
        return [join_shares(shares, judged.positions), joined, *_with_replay(task, judged.positions, reports)]

    def _shared_table(self, shares: Sequence[LaneShare], keys: Sequence[LaneKeys]) -> str | None:
        """A table of which two lanes have rows of one key, or may have them; None if there is none."""
        tables = [
            {region.table for receipt in share.loaded for region in receipt.regions if region.rows} for share in shares
        ]
        known = {table for lane in keys for table in lane.content}
        for table in sorted(set[str]().union(*tables) - known):
            if sum(table in lane for lane in tables) > 1 and self.may_meet(table):
                return table
        return find_shared([lane.content for lane in keys])


def _of_failed(reports: Sequence[LaneReport]) -> list[Message]:
    """The reports, of which one says why a lane has failed. Without it the label would be committed without a lane."""
    if not any(report.code for report in reports):
        raise StarRocksSinkError("A lane has ended without a result: this is a bug, please report it.")
    return [*reports]


def join_shares(shares: Sequence[LaneShare], positions: Mapping[str, Ints]) -> LaneShare:
    """The lanes' shares as one; `positions` has those of all units by source partition, ascending."""
    receipts = [receipt for share in shares for receipt in share.loaded]
    spans = _join_spans([span for receipt in receipts for span in receipt.positions], positions)
    letters = _join_spans([span for receipt in receipts for span in receipt.dead_lettered_positions], positions)
    loaded = [replace(receipt, positions=(), dead_lettered_positions=()) for receipt in receipts]
    loaded[:1] = [replace(first, positions=spans, dead_lettered_positions=letters) for first in loaded[:1]]
    cuts: dict[str, Sequence[int]] = {}
    for name in {name for share in shares for name in share.cuts}:
        found = sorted({position for share in shares for position in share.cuts.get(name, ())})
        places = np.linspace(0, len(found) - 1, min(_MOST_CUTS, len(found))).astype(np.int64)
        cuts[name] = [found[place] for place in places.tolist()]
    partitions = tuple(sorted({name for share in shares for name in share.partitions}))
    return LaneShare(tuple(loaded), partitions, cuts=cuts)


def _join_spans(spans: Sequence[PositionSpan], positions: Mapping[str, Ints]) -> tuple[PositionSpan, ...]:
    joined = []
    for name in sorted({span.partition for span in spans}):
        mine = [span for span in spans if span.partition == name]
        first, last = min(span.first for span in mine), max(span.last for span in mine)
        low, high = np.searchsorted(positions[name], [first, last + 1]).tolist()
        digests = [span.digest for span in mine if span.last == last]
        # A lane knows the content of its own rows alone.
        joined.append(PositionSpan(name, first, last, high - low, digests[0] if len(digests) == 1 else ""))
    return tuple(joined)


def _with_replay(task: LaneTask, positions: Mapping[str, Ints], reports: Sequence[LaneReport]) -> Sequence[LaneReport]:
    """The reports, the first one with what all lanes together have left out because the ledger has it.

    Raises the errors of Replay: one lane cannot know whether others have the position of the ledger.
    """
    if task.ownership is None:
        return reports
    options = task.options
    replay = Replay(
        task.ownership.positions,
        options.check_replays,
        task.epoch if task.streaming else "",
        task.batch_id,
        dict(task.ownership.skips),
    )
    for name, units in positions.items():
        ends = np.ones(len(units), dtype=bool)
        replay.new_rows([(name, 0, len(units))], BatchRows(units, ends, np.arange(len(units) + 1), memoryview(b"")))
    skips = {name: replay.skips[name] for name in replay.changed}
    first, *others = (replace(report, work=replace(report.work, replayed_transactions=0)) for report in reports)
    work = replace(first.work, skips=skips, replayed_transactions=replay.skipped_transactions)
    return [replace(first, work=work), *others]
