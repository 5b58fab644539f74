"""Schedules in which commands hold the job at a position of its source (`protocol.bound`), beside all other trouble.

A command holds the job, bounds it to what a snapshot of a source partition shows, and lets it go on. Once a driver says
that it stands there, all that the snapshot shows must be visible, and nothing else, until the command ends the bound or
its seconds are over. A command may be killed at any time. In the end nothing is lost, or there twice, as ever.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from starrocks_txn_sink.assembler.verified.rules import VerifiedPolicy
from starrocks_txn_sink.errors import JobHeld
from starrocks_txn_sink.protocol import bound as bounds, fencing, hold
from starrocks_txn_sink.protocol.bound import EXACT, NEAR, REACHED, Bound, WriteBound
from starrocks_txn_sink.protocol.label import Steps, Wait
from starrocks_txn_sink.protocol.ledger import HOLD, ReadMarker, ReadOwner, fresh_tokens, retry_until_answered
from starrocks_txn_sink.sink.events_writer import at_bound
from starrocks_txn_sink.sink.session import Resumed
from starrocks_txn_sink.sources.formats.raw_format import RawFormat
from starrocks_txn_sink.writer.assembling import AssemblySpec

from .debezium_log import debezium_source
from .debezium_world import WHOLE, DebeziumDriver, DebeziumWorld
from .driver import DATABASE, JOB, Driver
from .event_log import EventSource
from .scheduler import Fiber, Node
from .source import Source
from .trace import Say
from .world import History

_FIRST = 701  # the id of a source's first transaction
_TRIES = 3


class BoundedWorld(DebeziumWorld):
    """`stood` is the token of the bound at which a driver stands; `exact` and `near` count what commands were told."""

    def __init__(self, seed: int, say: Say | None = None, name: int | None = None) -> None:
        super().__init__(2 * seed + 1, say, seed if name is None else name)
        self.stood = ""
        self.told = {EXACT: 0, NEAR: 0}
        self.commands: list[Command] = []
        for _ in range(self.rng.choice((1, 2, 4))):
            self.scheduler.after(self.rng.uniform(0.1, 12.0), self._command)

    def _events_of(self, source: Source) -> EventSource:
        self.assembly = WHOLE
        return debezium_source(source.truth, self.rng, whole=True)

    def _make_driver(self, *arguments: Any, **keywords: Any) -> BoundedDriver:
        return BoundedDriver(self, *arguments, **keywords)

    def _judge_error(self, driver: Driver, error: BaseException) -> None:
        if not isinstance(error, JobHeld):
            super()._judge_error(driver, error)

    def _command(self) -> None:
        if self.done:
            return
        self.events += 1
        command = Command(self, len(self.commands))
        self.commands.append(command)
        command.start()
        if self.rng.random() < 0.4:
            self.scheduler.after(self.rng.uniform(0.0, 12.0), self._kill, command)

    def _kill(self, command: Command) -> None:
        self.trace.say(command.name, "is killed")
        command.alive = False


class BoundedDriver(DebeziumDriver):
    """It waits as `sink.session` does: a new process knows of no hold and no bound in front of its take-over."""

    _world: BoundedWorld

    def _resuming(self, resuming: Steps[Resumed]) -> Steps[Resumed]:
        world, stood = self._world, ""
        if self._rng.random() < 0.7:
            stood = world.stood
            yield from bounds.await_end(JOB, stood, world.rng)
            holder = yield from retry_until_answered(ReadOwner(JOB), world.rng)
            if holder is not None and holder.held_from is not None:
                yield from fencing._await_release(JOB, holder, world.rng)
        resumed = yield from resuming
        bound = yield from bounds.read(JOB, world.rng)
        self.session.bound = bound if bound is not None and bound.token != stood else None
        return resumed

    def _next_batch(self) -> None:
        if self.session.bound is None:
            super()._next_batch()
            return
        Fiber(self, bounds.read(JOB, self._world.rng), *self._way(), self._begin_bounded)

    def _begin_bounded(self, now: object) -> None:
        before = self.session.bound
        if isinstance(now, BaseException):
            self._end(now)
            return
        same = isinstance(now, Bound) and before is not None and now.token == before.token
        self.session.bound = now if same and isinstance(now, Bound) else None
        super()._next_batch()

    def _way(self) -> tuple[float, Any]:
        return self.scheduler.now + self._world.options.batch_deadline, self._world.network.send

    def _assembly(self, lines: RawFormat | None) -> AssemblySpec:
        assembly = super()._assembly(lines)
        assert isinstance(assembly.policy, VerifiedPolicy)
        return replace(assembly, policy=replace(assembly.policy, bound=self.session.bound))

    def _acknowledge(self) -> None:
        bound = self.session.bound
        shares = [] if bound is None or self._is_empty() else self._shares()
        notice = next((found for share in shares if (found := at_bound(share, self.session.positions))), None)
        if bound is None or notice is None:
            super()._acknowledge()
            return
        self._world.trace.say(self.name, f"stands at {bound.token}, {notice.fields['how']}")
        steps = bounds.reach(JOB, bound, notice.fields["how"], self._world.rng)
        Fiber(self, steps, *self._way(), self._stands)

    def _stands(self, result: object) -> None:
        assert self.session.bound is not None
        if isinstance(result, BaseException):
            self._end(result)
            return
        self._world.stood = self.session.bound.token
        self._end(JobHeld("The job is held at a position."))


class Command(Node):
    """One call of `verify --exact`."""

    def __init__(self, world: BoundedWorld, number: int) -> None:
        super().__init__(world.scheduler, f"command {number}")
        self._world = world
        self._tokens = fresh_tokens(HOLD, 0, world.rng)
        self._seconds = world.rng.choice((4, 15, 30))
        self._until = 0.0

    def start(self) -> None:
        self._world.trace.say(self.name, "starts")
        self._fiber(self._compare(), 2.0 * self._seconds + 60.0)

    def _fiber(self, steps: Steps[None], seconds: float) -> None:
        Fiber(self, steps, self.scheduler.now + seconds, self._world.network.send, self._ended)

    def _ended(self, result: object) -> None:
        self._world.trace.say(self.name, f"ends: {result}")

    def _compare(self) -> Steps[None]:
        world, rng = self._world, self._world.rng
        held = yield from hold.hold(JOB, DATABASE, self._seconds, self._tokens, rng)
        number = rng.randrange(len(world.source.truth))
        partition = world.source.truth[number][0].partition
        self._until = self.scheduler.now + self._seconds
        bound, count = self._snapshot(number)
        yield from retry_until_answered(WriteBound(JOB, bound), rng)
        yield from hold.release(JOB, held.owner, rng)
        for _ in range(_TRIES):
            how = yield from self._reached(bound)
            if how == EXACT:
                yield from self._stand_still(partition, count)
            if how != NEAR or self.scheduler.now >= self._until - 1.0:
                break
            bound, count = self._snapshot(number)
            yield from retry_until_answered(WriteBound(JOB, bound), rng)
        yield from bounds_freed(bound, rng)

    def _snapshot(self, number: int) -> tuple[Bound, int]:
        """A bound, and how many transactions its snapshot shows: all that are visible here, and some more."""
        world, truth = self._world, self._world.source.truth[number]
        first = world.checker._next[truth[0].partition]
        count = world.rng.randint(first, min(len(truth), first + 4))
        running = [_FIRST + transaction.number for transaction in truth[count:]]
        stop = _FIRST + len(truth)
        if running and count and world.rng.random() < 0.3:  # the last two commits are seen in the other order
            running[0], count = running[0] - 1, -1
        place = truth[max(count, 0) - 1].position if count else 0
        if count < 0:
            place = truth[running[0] - _FIRST + 1].position
        snapshot = f"{min([*running, stop])}:{stop}:{','.join(map(str, running))}"
        token = f"b{self._world.next_attempt()}"
        seconds = max(1, int(self._until - self.scheduler.now))
        return Bound(token, truth[0].partition, {"lsn": place}, snapshot, seconds), count

    def _reached(self, bound: Bound) -> Steps[str | None]:
        while self.scheduler.now < self._until:
            for how in (EXACT, NEAR):
                marker = ReadMarker(JOB, REACHED, bound.reached(how))
                if (yield from retry_until_answered(marker, self._world.rng)):
                    self._world.told[how] += 1
                    return how
            yield Wait(0.3, "a driver that stands")
        return None

    def _stand_still(self, partition: str, count: int) -> Steps[None]:
        """All that the snapshot shows is visible, and nothing else, while the tables are compared."""
        ends = self.scheduler.now + self._world.rng.uniform(0.0, 20.0)
        while self.scheduler.now < min(ends, self._until):
            visible = self._world.checker._next[partition]
            if visible != count:
                text = f"{self.name} compares {count} transactions of {partition}, and {visible} are visible"
                self._world.checker.report("other", text)
                return
            yield Wait(0.2, "the end of the comparison")


def bounds_freed(bound: Bound, rng: Any) -> Steps[None]:
    """The command has the job go on."""
    yield from retry_until_answered(WriteBound(JOB, replace(bound, seconds=0)), rng)


def run_bounded(seed: int, say: Say | None = None, name: int | None = None) -> History:
    """Run the schedule of `seed`, whose history has the seed `name`."""
    return BoundedWorld(seed, say, name).run()
