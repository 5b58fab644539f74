"""TransactionAssembly: what `StarRocksSink(options, assemble=…)` needs to know of the events it is given."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal

from starrocks_txn_sink.assembler.model import MissingBegin, OnOpenTimeout, Policy, seconds
from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.sources.txn_lines import TxnEventLines

Shuffle = bool | Literal["auto"]

_SHUFFLES: Final = (True, False, "auto")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionAssembly:
    """Raw events go into the sink, and its lanes make whole source transactions of them.

    The events have the columns that `assemble_transactions` reads, with `by` for the source partition; or they are raw
    JSON in one column, described by `lines`. The rules and their options are those of `assemble_transactions`.

    `shuffle` says how events come to their lane. `auto`: with one lane as they come, in one task, and sorted first when
    a source partition's events turn out not to be in order; with more lanes always sorted. True: always sorted. False
    (one lane only): never; events out of order are an error, before anything is committed. Small micro-batches (100 000
    events, 32 MB) may be in any order.

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
    shuffle: Shuffle = "auto"
    state_dir: str | None = None

    def __post_init__(self) -> None:
        if self.shuffle not in _SHUFFLES:
            raise OptionError(f"shuffle is {self.shuffle!r}.", hint='Use "auto", True or False.', option="shuffle")
        _ = self.policy

    @property
    def policy(self) -> Policy:
        return Policy(self.interleaved, seconds(self.open_timeout), self.on_open_timeout, self.missing_begin)

    def sorted_first(self, lanes: int) -> bool:
        """Whether events are sorted before any lane has looked at them.

        Raises OptionError for several lanes without a shuffle: only if each source partition sat in one task would that
        be right, and nobody can know before the first lane commits.
        """
        if self.shuffle is False and lanes > 1:
            raise OptionError(
                f"shuffle=False needs one lane, and there are {lanes}: events of one source partition could reach two "
                "lanes, and what the second one commits would hide what the first one has not written yet.",
                hint='Set lanes=1, or leave shuffle at "auto".',
                option="shuffle",
            )
        return self.shuffle is True or lanes > 1


def refuse_with(assembly: TransactionAssembly, options: SinkOptions, *, routed: bool) -> None:
    """Raise OptionError for what cannot be done together with `assembly`."""
    assembly.sorted_first(options.lanes)
    if routed:
        raise OptionError(
            "routes and assemble are both given, but events bring their rows as JSON.",
            hint="Make the column `row` with to_json, or use assemble_transactions and routes.",
            option="assemble",
        )
    if options.compact:
        raise OptionError(
            "compact and assemble are both given, but rows are left out before the lanes, where nothing is whole yet.",
            hint="Use assemble_transactions with compact, or turn compact off.",
            option="compact",
        )
