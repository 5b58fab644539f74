"""TransactionAssembly: what `StarRocksSink(options, assemble=…)` needs to know of the events it is given."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from starrocks_txn_sink.assembler.model import MissingBegin, OnOpenTimeout, Policy, seconds
from starrocks_txn_sink.sources.txn_lines import TxnEventLines


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionAssembly:
    """Raw events go into the sink, and its lanes make whole source transactions of them.

    The events have the columns that `assemble_transactions` reads, with `by` for the source partition; or they are raw
    JSON in one column, described by `lines`. The rules and their options are those of `assemble_transactions`.

    `SinkOptions.shuffle` says how events come to their lane. `auto`: with one lane as they come, in one task, and
    sorted first when a source partition's events turn out not to be in order; with more lanes always sorted. True:
    always sorted. False (one lane only): never; events out of order are an error, before anything is committed. Small
    micro-batches (100 000 events, 32 MB) may be in any order.

    `state_dir` (a path or URI that driver and executors share) is where open source transactions wait; without it they
    wait in the query's checkpoint, so that a copy of the checkpoint has both.

    `open_timeout` is judged when a micro-batch runs: Spark runs none while no event comes at all.

    Raises OptionError for values that cannot work.
    """

    by: str = "source_partition"
    interleaved: bool = False
    open_timeout: float | timedelta | str | None = None
    on_open_timeout: OnOpenTimeout = "fail"
    missing_begin: MissingBegin = "fail"
    lines: TxnEventLines | None = None
    state_dir: str | None = None

    def __post_init__(self) -> None:
        _ = self.policy

    @property
    def policy(self) -> Policy:
        return Policy(self.interleaved, seconds(self.open_timeout), self.on_open_timeout, self.missing_begin)
