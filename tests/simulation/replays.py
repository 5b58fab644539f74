"""Replays of dead letters in a schedule: started, killed, paused, started again, while the job's drivers run.

They carry out the orders of the command's coordinator. After a while tables are altered, so that what was bad can be
written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from starrocks_txn_ops.dead_letters import load_rows, replay_ownership
from starrocks_txn_ops.own_loads import coordinator_of
from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.coordinator.coordinator import ChangeTables, NextRound, Order, Pause, RunLanes
from starrocks_txn_sink.coordinator.ownership import ReplayOwnership
from starrocks_txn_sink.protocol.dead_letters import DEAD_LETTER_TABLE, DeadLetterRow, take_over_replays
from starrocks_txn_sink.protocol.label import labels
from starrocks_txn_sink.protocol.ledger import REPLAY, Owner, fresh_tokens
from starrocks_txn_sink.writer.runner import Performer

from .driver import DATABASE, JOB
from .lane import NOTHING
from .orders import follow, perform
from .poison import JudgingServer
from .scheduler import Fiber, Node

if TYPE_CHECKING:
    from .world import World

Place = tuple[str, int]
_DEADLINE = 60.0
_LOOK_SECONDS, _MOST_LOOKS = 2.0, 40
_ALTER_SECONDS = 40.0  # behind the first rejection, at most: a search goes on for some of them


class Replayer(Node):
    """One call of the command; `result` is None while it runs, then whether it wrote all it found."""

    stall = 0.2

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world.scheduler, f"replay {number}")
        self.batch = world.rng.getrandbits(62)
        self.owner: Owner | None = None
        self.result: bool | None = None
        self._world = world
        self._names = labels(JOB, REPLAY, 0, self.batch, 1)
        self._deadline = Deadline.after(_DEADLINE, self._world.clock)
        self._tokens = fresh_tokens(REPLAY, 0, world.rng)
        self._rows: list[DeadLetterRow] = []
        self._places: list[Place] = []

    @property
    def writer(self) -> str:
        """What its labels begin with."""
        return f"{JOB}-{REPLAY}-0-{self.batch}"

    def start(self) -> None:
        self._fiber(take_over_replays(JOB, DATABASE, self._tokens, self._world.rng), self._deadline, self._claimed)

    def _fiber(self, steps: Any, deadline: Deadline, callback: Callable[[object], None]) -> None:
        Fiber(self, steps, deadline.at, self._world.network.send, callback)

    def _claimed(self, result: object) -> None:
        if not isinstance(result, Owner):
            self._end(False, str(result))
            return
        self.owner = result
        self._world.replays_taken_over(self)
        self._places = sorted({(row["source_partition"], row["position"]) for row in self._dead_letters()})
        self._next()

    def _dead_letters(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._world.cluster.server.store.tables.get(DEAD_LETTER_TABLE, [])
        return rows

    def _next(self) -> None:
        if not self._places:
            self._end(True, "all is written")
            return
        place = self._places.pop(0)
        letters = [row for row in self._dead_letters() if (row["source_partition"], row["position"]) == place]
        letters.sort(key=lambda row: (row["table_name"], row["row_number"]))
        if not letters:
            self._next()
            return
        self._rows = [
            DeadLetterRow((row["id"],), row["table_name"], row["content"], row["load_columns"]) for row in letters
        ]
        options = self._world.options
        coordinator = coordinator_of(options, self._names, self._ownership(), self._deadline, self._world.rng)
        follow(coordinator.write(), self._carry_out, self._written)

    def _ownership(self) -> ReplayOwnership:
        assert self.owner is not None
        return replay_ownership(self._world.options, self.owner, self._tokens)

    def _carry_out(self, order: Order, callback: Callable[[object], None]) -> None:
        world = self._world
        match order:
            case RunLanes(label):
                self._fiber(load_rows(world.options, self._rows, {}, label, world.rng), self._deadline, callback)
            case Pause(seconds):
                self.soon(seconds, callback, None)
            case _:
                assert not isinstance(order, ChangeTables | NextRound)
                performer = Performer(
                    world.options,
                    NOTHING.transport,
                    world.clock,
                    self._deadline,
                    world.rng,
                    ownership=self._ownership(),
                    explainer=world.explainer(),
                )
                perform(self, performer, order, world.network.send, callback)

    def _written(self, receipts: object) -> None:
        if not isinstance(receipts, list):
            self._end(False, str(receipts))
            return
        for receipt in receipts:
            if receipt.label not in self._world.checker.published:
                self._world.checker.report("lost", f"{self.name} takes {receipt.label} for visible")
        self._next()

    def _end(self, all_written: bool, text: str) -> None:
        self.result = all_written
        self._world.trace.say(self.name, f"ends: {text}")


class Replays:
    """Starts replays while there is trouble, and after it until nothing is left to replay."""

    def __init__(self, world: World) -> None:
        self.made: list[Replayer] = []
        self._world = world

    def plan(self, upto: float) -> None:
        """The tables are altered some time before `upto`, or when rows were rejected; replays come before and after."""
        world, rng = self._world, self._world.rng
        altered = rng.uniform(0.0, upto)
        world.scheduler.after(altered, self._alter)
        for _ in range(rng.randint(1, 4)):
            world.scheduler.after(rng.uniform(altered * 0.8, upto), self._start, True)
        world.scheduler.after(upto + 1.0, self._until_done, 20)

    def _alter(self, looks: int = _MOST_LOOKS) -> None:
        """An operator alters tables because rows were rejected, which takes as long as the source has none."""
        world = self._world
        server = world.cluster.server
        assert isinstance(server, JudgingServer)
        if looks and not server.has_rejected:
            world.scheduler.after(_LOOK_SECONDS, self._alter, looks - 1)
        elif looks:
            world.scheduler.after(world.rng.uniform(0.0, _ALTER_SECONDS), self._alter, 0)
        else:
            world.trace.say("an operator", "alters the tables: what was bad can be written")
            server.lenient = True

    def _start(self, trouble: bool) -> Replayer:
        replayer = Replayer(self._world, len(self.made))
        self.made.append(replayer)
        self._world.trace.say(replayer.name, "starts")
        replayer.start()
        if trouble:
            self._world.scheduler.after(self._world.rng.uniform(0.0, 0.5), self._disturb, replayer)
        return replayer

    def _disturb(self, replayer: Replayer) -> None:
        luck = self._world.rng.random()
        if luck < 0.3:
            self._world.trace.say(replayer.name, "is killed")
            replayer.alive = False
        elif luck < 0.7:
            replayer.paused_until = self._world.scheduler.now + self._world.rng.uniform(0.1, 40.0)
        if luck < 0.7:
            self.start_another()

    def start_another(self) -> None:
        """An operator does not want to wait for the one that hangs."""
        self._world.scheduler.after(self._world.rng.uniform(0.0, 2.0), self._start, False)

    def _until_done(self, tries: int) -> None:
        """An operator who calls it until it says that all is written, and the job has ended."""
        store = self._world.cluster.server.store
        busy = any(replayer.alive and replayer.result is None for replayer in self.made)
        nothing = not store.tables.get(DEAD_LETTER_TABLE) and not store.pending()
        if tries == 0 or (self._world.done and nothing and not busy):
            return
        if not busy:
            self._start(False)
        self._world.scheduler.after(8.0, self._until_done, tries - (not busy))

    def taken_over(self, newest: Replayer) -> None:
        """A replay from before `newest`, and does not have the claim now, must not commit any more."""
        assert newest.owner is not None
        row = self._world.cluster.server.store.ledger.get((JOB, REPLAY, ""))
        if row is None or row["token"] != newest.owner.token:
            return
        for replayer in self.made:
            if replayer is not newest and replayer.owner is not None:
                self._world.checker.superseded(replayer.writer, replayer.owner.token)

    def was_killed(self, label: str) -> bool:
        """Whether `label` is one of a replay that nobody was left to roll back for."""
        return any(label.startswith(replayer.writer + "-") and not replayer.alive for replayer in self.made)
