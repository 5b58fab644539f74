"""Schedules in which a topic of Debezium's messages is deleted and made again, shorter or longer than before.

The new one has other rows at the same offsets. Its id alone tells: a driver asks for it at its start and again while it
runs, and ends before it writes anything of the new topic. Transactions are whole, or each change is one by itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from starrocks_txn_sink.assembler.rules.spill import Manifest
from starrocks_txn_sink.errors import SourceChanged
from starrocks_txn_sink.protocol.ledger import POSITION
from starrocks_txn_sink.sources.kafka.topic_ids import ASKED_AGAIN, TopicIds

from .assembling_driver import AssemblingDriver
from .debezium_log import debezium_source
from .debezium_world import NONE, WHOLE, DebeziumDriver, DebeziumWorld
from .driver import JOB, Driver
from .event_log import Event, EventChecker, EventSource
from .recreated_world import StoppedChecker
from .source import Source
from .trace import Say
from .world import History

_TOPIC = "shop"


class RecreatedTopicWorld(DebeziumWorld):
    """A world whose topics are made again in front of a micro-batch; what of the old ones was not read is gone."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.topic_id = "1"
        self._planned = 0
        self._made_again_at = self.rng.randrange(2, 8)

    def _events_of(self, source: Source) -> EventSource:
        self.assembly = WHOLE if self.seed % 2 else NONE
        return debezium_source(source.truth, self.rng, whole=self.seed % 2 == 1)

    def _make_checker(self, source: Source) -> EventChecker:
        return StoppedChecker(source, self.cluster.server.store, JOB, self.trace)

    def _make_driver(self, *arguments: Any, **keywords: Any) -> AssemblingDriver:
        return RecreatedTopicDriver(self, *arguments, **keywords)

    def plans(self, driver: RecreatedTopicDriver) -> bool:
        """A driver is about to plan a micro-batch: whether its topics are made again now."""
        self._planned += 1
        due = self.topic_id == "1" and self._planned >= self._made_again_at and self._active() == [driver]
        if not due or not self._all_in_ledger():
            return False
        assert isinstance(self.source, EventSource)
        self.events += 1
        self.topic_id = "2"
        for slices in self.source.slices:
            others = [[_otherwise(event) for event in events] for events in slices]
            upto = self.rng.randint(1, len(others)) if self.rng.random() < 0.4 else len(others)
            slices[:] = others[:upto]
        assert isinstance(self.checker, StoppedChecker)
        self.checker.stopped = True
        return True

    def _all_in_ledger(self) -> bool:
        """Whether a row of each source partition is visible: else nothing of it is known behind a lost checkpoint."""
        ledger = self.cluster.server.store.ledger
        return all((JOB, POSITION, transactions[0].partition) in ledger for transactions in self.source.truth)

    def driver_ended(self, driver: Driver, error: BaseException | None) -> None:
        """Who meets the new topic ends, and nobody starts another one in the end."""
        if self.topic_id == "1" or not isinstance(error, SourceChanged):
            super().driver_ended(driver, error)
        elif self.rng.random() < 0.5 and self.network.trouble:
            self._restart_later()
        else:
            self.done = True


class RecreatedTopicDriver(DebeziumDriver):
    """It asks for the topic's id as `sink.events_writer` does, and reads no offsets by itself."""

    _world: RecreatedTopicWorld

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._plan.direct = False
        self._ids = TopicIds()
        self._topic_planned = ""

    def _next_batch(self) -> None:
        if self._world.plans(self):
            self.soon(ASKED_AGAIN, self._goes_on)  # the topic is away for a while
        else:
            self._goes_on()

    def _goes_on(self) -> None:
        if self.over:
            return
        begin = self._offsets[self._batch - 1] if self._batch and self._batch <= len(self._offsets) else ()
        if any(low > end for low, end in zip(begin, self._source.end, strict=False)):
            self._end(SourceChanged("Kafka no longer has these offsets."))  # Spark, or a lane
            return
        super()._next_batch()

    def _write(self) -> None:
        now = self._world.clock.monotonic()
        self._topic_planned = self._world.topic_id
        try:
            self._ids.check({_TOPIC}, self._before.topics, lambda _: {_TOPIC: self._topic_planned}, now)
        except SourceChanged as error:
            self._end(error)
            return
        super()._write()

    def _published(self, after: Manifest) -> Manifest:
        return replace(after, topics={**self._before.topics, **self._ids.known})

    def _acknowledge(self) -> None:
        if self._before.topics.get(_TOPIC, "2") != "2" == self._topic_planned and not self._is_empty():
            self._world.checker.report("lost", f"{self.name} goes on in the middle of another topic")
        super()._acknowledge()


def _otherwise(event: Event) -> Event:
    return event if event["value"] is None else event | {"value": event["value"].replace(b'"v":', b'"w":1,"v":')}


def run_recreated_topic(seed: int, say: Say | None = None, name: int | None = None, *, ledger: bool = True) -> History:
    """Run the schedule of `seed`, whose history has the seed `name`."""
    del ledger
    return RecreatedTopicWorld(seed, say, name).run()
