"""Schedules in which a source is recreated, with the same ids again and other content.

- The database of Debezium's whole transactions is set back, and gives the very transaction ids once more; or the log
  of a server was reset, whose GTIDs begin again. The error names a further source, and the operator says since when:
  nothing of either source is lost then, or there twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from starrocks_txn_sink.assembler.verified.sources import begins
from starrocks_txn_sink.errors import SourceChanged

from .debezium_log import DebeziumSource, Follow, debezium_source
from .debezium_world import WHOLE, DebeziumWorld
from .driver import Driver
from .event_log import EventSource
from .source import Source
from .trace import Say
from .world import History


@dataclass(slots=True)
class SameIdsSource(DebeziumSource):
    """What has an id that a further source gives again waits, as long as nothing says which of both it is of."""

    def ended(self, partition: int, slices: int) -> int:
        """As that of DebeziumSource, unless messages of an undeclared source are among them."""
        number = self.followed.index(partition) + len(self.slices)
        further, first = self.truth[number][0].partition, self.truth[partition][0].partition
        read = (event for events in self.slices[partition][:slices] for event in events)
        if further not in self.declared and any(begins(first, event["timestamp"]) >= further for event in read):
            return 0
        return DebeziumSource.ended(self, partition, slices)


_FOLLOW: tuple[Follow, ...] = ("same_ids", "reset")


class SameIdsWorld(DebeziumWorld):
    """A world of whole source transactions, whose database begins again with the ids of before."""

    def _events_of(self, source: Source) -> EventSource:
        self.assembly = WHOLE
        made = debezium_source(source.truth, self.rng, whole=True, follow=_FOLLOW[self.seed % len(_FOLLOW)])
        return SameIdsSource(made.truth, [], made.slices, made.proofs, made.followed)

    def _judge_error(self, driver: Driver, error: BaseException) -> None:
        """The operator knows when the database was set back, where ids that came twice do not tell."""
        name = error.context.get("new_source") if isinstance(error, SourceChanged) else None
        true = {further for further in self.further if further.rpartition("@")[0] == str(name).rpartition("@")[0]}
        if not true or true <= {*self.assembly.new_sources}:
            super()._judge_error(driver, error)
            return
        self.events += 1
        self.assembly = replace(self.assembly, new_sources=(*self.assembly.new_sources, *sorted(true)))


def run_same_ids(seed: int, say: Say | None = None, name: int | None = None, *, ledger: bool = True) -> History:
    """Run the schedule of `seed`, whose history has the seed `name`."""
    return SameIdsWorld(seed, say, name, ledger=ledger).run()
