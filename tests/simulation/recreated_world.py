"""Schedules in which a source is recreated, with the same ids again and other content.

- The database of Debezium's whole transactions is set back, and gives the very transaction ids once more; or the log
  of a server was reset, whose GTIDs begin again. The error names a further source, and the operator says since when:
  nothing of either source is lost then, or there twice.
- A source of TxnEvents counts from the same place again, with fewer, as many, or more events, or from further back.
- A source without positions tells the micro-batch that is written in other words, whenever an older checkpoint asks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from starrocks_txn_sink.assembler.verified.sources import begins
from starrocks_txn_sink.errors import InputError, SourceChanged

from .assembling_driver import AssemblingDriver
from .assembling_world import AssemblingWorld
from .debezium_log import DebeziumSource, Follow, debezium_source
from .debezium_world import WHOLE, DebeziumDriver, DebeziumWorld
from .driver import JOB, Driver
from .event_log import Event, EventChecker, EventSource, event_source, sliced
from .profile import Profile
from .source import Cut, Source, SourceTransaction
from .trace import Say
from .world import PLAIN, History, World


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
        """The operator knows when the database was set back, where ids that came twice do not tell.

        A driver that was started before the operator knew may still say so.
        """
        assert isinstance(driver, DebeziumDriver)
        name = error.context.get("new_source") if isinstance(error, SourceChanged) else None
        true = {further for further in self.further if further.rpartition("@")[0] == str(name).rpartition("@")[0]}
        if not true or true <= {*driver.rules.new_sources}:
            super()._judge_error(driver, error)
            return
        self.events += 1
        declared = self.assembly.new_sources
        self.assembly = replace(self.assembly, new_sources=(*declared, *sorted(true.difference(declared))))


def run_same_ids(seed: int, say: Say | None = None, name: int | None = None, *, ledger: bool = True) -> History:
    """Run the schedule of `seed`, whose history has the seed `name`."""
    return SameIdsWorld(seed, say, name, ledger=ledger).run()


# --- TxnEvents ---


class RetoldSource(EventSource):
    """The source's events, and behind them those of another one that counts from the same place again.

    `own` has for each source partition how many slices are of the first one. The others have its positions and ids in
    turn, and, where they are more, go on behind them; their rows are others.
    """

    own: tuple[int, ...]
    apart: tuple[bool, ...]  # sorted with events of the first one, those in front of all would just be events of it

    def ended(self, partition: int, slices: int) -> int:
        """As that of EventSource: nothing of the other source is to be written."""
        return EventSource.ended(self, partition, min(slices, self.own[partition]))

    def others(self, begin: Cut, end: Cut) -> list[Event]:
        """The events of the other source in the slices from `begin` to `end`."""
        cuts = enumerate(zip(begin, end, strict=True))
        slices = (self.slices[at][max(low, self.own[at]) : high] for at, (low, high) in cuts)
        return [event for part in slices for events in part for event in events]


def retold_source(truth: list[list[SourceTransaction]], rng: Random) -> RetoldSource:
    """A source in which at least one source partition is recreated: with fewer, as many, or more events."""
    slices, own, apart = [], list[int](), list[bool]()
    for transactions in truth:
        events = [event for part in event_source([transactions], rng).slices[0] for event in part]
        again = _retold(events, rng) if rng.random() < 0.7 or not own else []
        slices.append(sliced(events, rng))
        own.append(len(slices[-1]))
        apart.append(bool(again) and again[0]["position"] < events[0]["position"])
        slices[-1] += sliced(again, rng)
    source = RetoldSource(truth, [], slices)
    source.own, source.apart = tuple(own), tuple(apart)
    return source


def _retold(events: list[Event], rng: Random) -> list[Event]:
    others = [_otherwise(event) for event in events]
    match rng.randrange(4):
        case 0:  # fewer
            return others[: rng.randint(1, len(others))]
        case 1:
            return others
        case 2:  # in front of all that was read: nothing will ever prove them
            first = events[0]["position"] - len(events)
            return [event | {"position": first + at} for at, event in enumerate(others)]
    last = events[-1]["position"]
    more = [_otherwise(event) | {"position": last + 1 + at} for at, event in enumerate(events)]
    return [*others, *more]


def _otherwise(event: Event) -> Event:
    return event | {"row": event["row"].replace('"v":', '"w":1,"v":')} if event.get("row") else event


class RetoldWorld(AssemblingWorld):
    """A world of TxnEvents whose source is recreated with the same positions and ids.

    A driver that reads events of the other source ends, or tells its rows (`source.repeated`), which are never written.
    The user starts the query again at times, and gives it up then.
    """

    def _events_of(self, source: Source) -> EventSource:
        return retold_source(source.truth, self.rng)

    def _make_checker(self, source: Source) -> EventChecker:
        return StoppedChecker(source, self.cluster.server.store, JOB, self.trace)

    def _make_driver(self, *arguments: Any, **keywords: Any) -> AssemblingDriver:
        return RetoldDriver(self, *arguments, **keywords)

    def tells_otherwise(self) -> bool:
        """The other source does."""
        return False

    def driver_ended(self, driver: Driver, error: BaseException | None) -> None:
        """A driver that has read events of both sources may say so, and nobody starts another one in the end."""
        assert isinstance(driver, RetoldDriver)
        assert isinstance(self.checker, StoppedChecker)
        both = isinstance(error, InputError) and "have the same position" in error.message
        if not (driver.reads_others and (both or isinstance(error, SourceChanged))):
            super().driver_ended(driver, error)
            return
        self.events += 1
        self.checker.stopped = True
        if self.rng.random() < 0.5:
            self._restart_later()
        else:
            self.done = True


class RetoldDriver(AssemblingDriver):
    """It reads no offsets, because there is one position twice."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._plan.direct = False

    @property
    def reads_others(self) -> list[Event]:
        """The events of the other source in this micro-batch."""
        source = self._source_log
        assert isinstance(source, RetoldSource)
        return source.others(self._begin, self._cut)

    def _cut_after(self, begin: Cut) -> Cut:
        source = self._source_log
        assert isinstance(source, RetoldSource)
        places = zip(begin, super()._cut_after(begin), source.own, source.apart, strict=True)
        return tuple(min(cut, own) if apart and low < own else cut for low, cut, own, apart in places)

    def _acknowledge(self) -> None:
        notices = [notice.name for share in self._shares() for notice in share.notices]
        if any(event["type"] == "DATA" for event in self.reads_others) and "source.repeated" not in notices:
            self._world.checker.report("lost", f"{self.name} drops rows of another source without a word")
        super()._acknowledge()


class StoppedChecker(EventChecker):
    """The checker of a source that ends with an error: what was not acknowledged may be missing then."""

    stopped = False

    def final(self) -> None:
        """As that of EventChecker."""
        if not self.stopped:
            super().final()
            return
        if not self.violations and self._state() != self._serial():
            self.report("other", "the final state is not the one of a serial replay")
        self.sample()

    def _serial(self) -> dict[tuple[str, str], tuple[int, int]]:
        seen = ((place, content) for place, content in self._contents.items() if place in self._seen)
        return {(table, row["k"]): place[1:] for place, (table, row) in seen}


def run_retold(seed: int, say: Say | None = None, name: int | None = None, *, ledger: bool = True) -> History:
    """Run the schedule of `seed`, whose history has the seed `name`."""
    del ledger  # without one nothing is told apart
    return RetoldWorld(seed, say, name).run()


# --- rows without positions ---


class RetoldUnitsWorld(World):
    """A world of plain rows, whose checkpoint is older at each start, and whose source is another one then."""

    retold = 1.0

    def _shaped(self, profile: Profile) -> Profile:
        events = sorted({*profile.events, "old_checkpoint"} - {"recreated", "other_ledger"})
        return super()._shaped(replace(profile, events=tuple(events)))


def run_retold_units(seed: int, say: Say | None = None, name: int | None = None, *, ledger: bool = True) -> History:
    """Run the schedule of `seed`, whose history has the seed `name`."""
    del ledger  # without one nothing is told apart
    return RetoldUnitsWorld(PLAIN[0] * seed + PLAIN[1], say, name).run()
