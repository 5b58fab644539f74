"""One schedule: cluster, network, drivers, the trouble they get into, and the checker that looks on."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache, partial
from random import Random

import pyarrow as pa

from starrocks_txn_sink.coordinator.coordinator import LANE
from starrocks_txn_sink.errors import (
    BeginFailed,
    CommitFailed,
    DeadlineExceeded,
    Fenced,
    LedgerBehind,
    LoadFailed,
    OutcomeUnknown,
    SourceChanged,
    TaskRepeated,
    TooManyTransactions,
    TransactionTimedOut,
    TransportError,
)
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol.ledger import DRIVER, POSITION
from starrocks_txn_sink.protocol.wire import Operation, Request
from starrocks_txn_sink.rows.keys import KeyColumn, TableKey
from starrocks_txn_sink.sink.checkpoint import Proof
from starrocks_txn_sink.writer.rejections import Explainer
from tests.support.model_server import ModelServer

from .checker import AtLeastOnceChecker, Checker, Violation
from .cluster import Cluster
from .driver import DATABASE, JOB, LEDGERS, Checkpoint, Driver
from .lane import LaneAttempt
from .network import LATEST, Network
from .plain import PlainChecker
from .poison import JudgingServer, PoisonChecker, poisoned
from .profile import Profile, among_others, draw, plain_profile
from .replays import Replayer, Replays
from .scheduler import Fiber, Node, Scheduler, SimulatedClock
from .source import TABLES, Cut, Source, make_source, spread
from .trace import Say, Trace

TIMEOUT = 60
LONGEST_PAUSE = 60.0
LONGEST_WAIT = 1.3 * TIMEOUT  # of a lane for its first rows
PLAIN = 8, 4  # schedules whose seed has this remainder have plain rows
POISON = 8, 6  # and these have rows that the server rejects, under a quarantine
OVERLAPPING = 8, 2  # in these a driver goes on beside its successor, whose claim nobody sees for a while
CROWDED = 3, 2  # and these, of the others and those with rejected rows, have more tables than a label has room for
KEYED = 3, 1  # and of these some rows have keys, and replace each other
KEYS: dict[str, TableKey] = {"journal": [KeyColumn.of("k", "VARCHAR", None)]}
MOST_DRIVERS = 8  # while there is trouble
MOST_EVENTS = 60_000
_EXPECTED = (
    BeginFailed,
    CommitFailed,
    DeadlineExceeded,
    Fenced,
    LedgerBehind,
    LoadFailed,
    OutcomeUnknown,
    TooManyTransactions,
    TransactionTimedOut,
    TransportError,
    TaskRepeated,
    InterruptedError,
    ConnectionError,
)


@cache
def _options(lanes: int, poison: bool, commit_interval: float | None, ledger: bool) -> SinkOptions:
    return SinkOptions(
        load_url="http://fe:8030",
        query_url="mysql://fe:9030" if ledger else None,
        delivery="exactly-once" if ledger else "at-least-once",
        database=DATABASE,
        job=JOB,
        lanes=lanes,
        timeout=TIMEOUT,
        commit_interval=commit_interval,
        batch_deadline=2.0 * TIMEOUT,
        max_attempts=3,
        on_bad_rows="quarantine" if poison else "fail",
        receipts_log=poison,
    )


@dataclass(frozen=True, slots=True)
class History:
    """What came of one schedule."""

    seed: int
    violations: tuple[Violation, ...]
    faults: int
    seconds: float
    commits: int
    drivers: int
    cpu_seconds: float


class World:
    """Everything of one schedule, made from its seed alone.

    Without a `ledger` nobody takes a job over: drivers may overlap, and each writes what its checkpoint has not
    acknowledged. Rows without positions and a quarantine need one.
    """

    crowded = False
    retold = 0.3  # how often a source without positions tells what is written in other words

    def __init__(self, seed: int, say: Say | None = None, name: int | None = None, *, ledger: bool = True) -> None:
        self.seed, self.name, self.ledger = seed, name, ledger
        self.rng = rng = Random(seed)
        self.scheduler = Scheduler()
        self.clock = SimulatedClock(self.scheduler)
        self.trace = Trace(self.scheduler, say)
        self.plain = ledger and seed % PLAIN[0] == PLAIN[1]
        self.poison = ledger and seed % POISON[0] == POISON[1]
        self.profile = self._shaped(among_others(draw(rng), Random(seed)))
        self.options = self.options_of(1)
        self.source = make_source(rng, seed % 8 == 0, self.profile.partitions)
        self.crowded = ledger and seed % CROWDED[0] == CROWDED[1] and seed % 8 != 0 and not self.plain
        if self.crowded:  # a label has room for the tables of any source transaction, and not for all
            self.source = spread(self.source)
        if self.poison:
            self.source = poisoned(self.source, Random(seed))
        server = JudgingServer if self.poison else ModelServer
        self.cluster = Cluster(self.scheduler, self.profile, rng, self.trace, server)
        self.network = Network(self.cluster, self.profile, rng, self.trace)
        self.network.listen = self._sent
        self.network.stall = self._stall
        self.network.overlaps = ledger and seed % OVERLAPPING[0] == OVERLAPPING[1]
        self.checker = self._make_checker(self.source)
        self.checker.most_tables = len(TABLES) if self.crowded else None
        self.network.turns.broken = partial(self.checker.report, "other")
        keyed = ledger and seed % KEYED[0] == KEYED[1] and not self.plain and not self.poison
        self.keys: dict[str, TableKey] = dict(KEYS) if keyed else {}
        self.checker.keyed = frozenset(self.keys)
        self.drivers: list[Driver] = []
        self.lanes: list[LaneAttempt] = []
        self._long_waits = self.profile.long_waits
        self.replays = Replays(self)
        self.proofs: dict[str, list[tuple[list[Cut], Proof]]] = {}  # by checkpoint, each with the plan so far
        self.events = 0
        self.done = False
        self._attempts = 0
        self._sends = 0
        self._trouble_at = self._plan_trouble()
        if self.network.overlaps:
            self._trouble_at |= {rng.randrange(10, 120): "second_driver" for _ in range(2)}

    def explainer(self) -> Explainer | None:
        """What asks the server about refused commits; without bad rows nobody does."""
        server = self.cluster.server
        return Explainer(DATABASE, server.ask) if isinstance(server, JudgingServer) else None

    def _make_checker(self, source: Source) -> Checker:
        usual = Checker if self.ledger else AtLeastOnceChecker
        kind = PlainChecker if self.plain else PoisonChecker if self.poison else usual
        return kind(source, self.cluster.server.store, JOB, self.trace)

    def options_of(self, lanes: int) -> SinkOptions:
        return _options(lanes, self.poison, self.profile.commit_interval, self.ledger)

    def _shaped(self, profile: Profile) -> Profile:
        return plain_profile(profile) if self.plain else profile

    def _plan_trouble(self) -> dict[int, str]:
        kinds = sorted({*self.profile.events} - {"old_checkpoint", "recreated", "other_ledger", "cut_off"})
        if not kinds:
            return {}
        count = self.rng.randint(0, self.profile.most_events)
        return {self.rng.randrange(2, 150): kinds[self.rng.randrange(len(kinds))] for _ in range(count)}

    # --- the run ---

    def run(self) -> History:
        """Run to the end and judge."""
        started = time.process_time()
        self.trace.say("schedule", f"seed {self.seed}: {self.profile}")
        for transaction in (transaction for transactions in self.source.truth for transaction in transactions):
            self.trace.say(
                "source", f"{transaction.partition}@{transaction.position}: {', '.join(t for t, _ in transaction.rows)}"
            )
        self._start_driver(Checkpoint("c1"))
        self.scheduler.after(self.profile.trouble_until, self._calm_down)
        if self.poison:
            self.replays.plan(self.profile.trouble_until)
        for _ in range(5):
            self.scheduler.after(self.rng.expovariate(0.5), self.checker.sample)
        longest = self.profile.trouble_until + LATEST + LONGEST_PAUSE + 6.0 * TIMEOUT + 60.0 * self.poison
        longest += LONGEST_WAIT * self.profile.long_waits
        try:
            self._judge(self.scheduler.run(longest, MOST_EVENTS))
        except Exception as bug:
            self.checker.report("other", f"the core broke down: {type(bug).__name__}: {bug}")
        return History(
            self.seed if self.name is None else self.name,
            tuple(self.checker.violations),
            self.network.faults + self.events,
            self.scheduler.now,
            len(self.cluster.server.commits),
            len(self.drivers),
            time.process_time() - started,
        )

    def _calm_down(self) -> None:
        self.trace.say("schedule", "no more trouble from here")
        self.network.trouble = False
        if not self.done and not self._active():
            self._start_driver(self._last_checkpoint())

    def _judge(self, over: bool) -> None:
        if not over or not self.done:
            going = [node.name for node in (*self._active(), *self._running())]
            self.checker.report("stuck", f"not done at {self.scheduler.now:.0f} s; still going: {', '.join(going)}")
        server = self.cluster.server
        server.now = self.scheduler.now
        for label in server.unfinished():
            if label not in self.network.troubled and not self._was_cut_off(label):
                self.checker.report("stuck", f"{label} was left open")
        server.now += TIMEOUT + 1
        server.expire()
        if server.unfinished() or server.store.pending():
            self.checker.report("stuck", "a transaction stays open past its timeout")
        self.checker.final()

    def _was_cut_off(self, label: str) -> bool:
        """Its task was killed, so that nobody was left to roll it back; the server's timeout ends it."""
        driver = next((driver for driver in self.drivers if label.startswith(driver.writer + "-")), None)
        if driver is not None and (not driver.alive or label.rsplit("-", 3)[1] != "all"):
            return True  # a claim may be begun after its label has ended
        if label in self.network.turns.abandoned:
            return True
        return self.replays.was_killed(label)

    # --- drivers ---

    def _active(self) -> list[Driver]:
        return [driver for driver in self.drivers if driver.active]

    def _running(self) -> list[LaneAttempt]:
        return [lane for lane in self.lanes if lane.alive and lane.result is None]

    def _last_checkpoint(self) -> Checkpoint:
        return next(driver.checkpoint for driver in reversed(self.drivers) if driver.oddity != "recreated")

    def _start_driver(self, checkpoint: Checkpoint, retold: bool = False, oddity: str = "") -> None:
        lanes = self.profile.lanes if self.rng.random() < 0.7 else self.rng.choice((1, 2, 3))
        driver = Driver(self, f"d{len(self.drivers) + 1}", checkpoint, lanes, retold, oddity)
        self.drivers.append(driver)
        driver.start()

    def driver_ended(self, driver: Driver, error: BaseException | None) -> None:
        if error is None and driver.oddity != "recreated":
            self.done = True
        elif error is None:
            self._restart_later()
        else:
            if isinstance(error, OutcomeUnknown) and not self.ledger:  # a rollback could undo what was committed
                self.network.troubled.add(str(error.context["label"]))
            self._judge_error(driver, error)
            self._restart_later()

    def _judge_error(self, driver: Driver, error: BaseException) -> None:
        if self.plain and isinstance(error, SourceChanged) and self._may_refuse(driver):
            return
        if driver.oddity == "recreated" and isinstance(error, SourceChanged):
            return
        if driver.oddity in LEDGERS and isinstance(error, LedgerBehind):
            return
        part = isinstance(error, OutcomeUnknown) and "only a part" in error.message  # which no trouble explains
        if part or not isinstance(error, _EXPECTED):
            self.checker.report("other", f"{driver.name} ended with {type(error).__name__}: {error}")

    def _may_refuse(self, driver: Driver) -> bool:
        """Plain rows cannot be told apart beyond their micro-batch: that is said."""
        return driver.stale or driver.disputed

    def _restart_later(self) -> None:
        delay = self.rng.uniform(0.2, 3.0)
        self.scheduler.after(delay, self._restart)

    def _restart(self) -> None:
        """A supervisor starts the query again, unless another driver is at it; at times with an old checkpoint."""
        if self.done or self._active() or (self.network.trouble and len(self.drivers) >= MOST_DRIVERS):
            return
        checkpoint, retold = self._last_checkpoint(), False
        if self.plain:
            checkpoint.done = checkpoint.newest  # an older copy was of no use
        if self.network.trouble and "recreated" in self.profile.events and self._all_written_before():
            self.events += 1
            self._start_driver(Checkpoint("new"), oddity="recreated")
            return
        if self.network.trouble and "other_ledger" in self.profile.events and self._proved(checkpoint):
            self.events += 1
            self._start_driver(checkpoint, oddity=self.rng.choice(LEDGERS))
            return
        if self.network.trouble and "old_checkpoint" in self.profile.events:
            checkpoint = self._older(checkpoint)
            retold = self.plain and self.rng.random() < self.retold
        self._start_driver(checkpoint, retold)

    def _all_written_before(self) -> bool:
        """Whether the ledger has a position of each source partition; rows without positions have none."""
        ledger = self.cluster.server.store.ledger
        have_positions = [(JOB, POSITION, transactions[0].partition) in ledger for transactions in self.source.truth]
        return not self.plain and all(have_positions) and self.rng.random() < 0.5

    def _proved(self, checkpoint: Checkpoint) -> bool:
        """Whether something next to the checkpoint says what was visible; often enough."""
        proofs = self.proofs.get(checkpoint.name, [])
        return checkpoint.done > 0 and any(proof.positions for _, proof in proofs) and self.rng.random() < 0.5

    def _older(self, checkpoint: Checkpoint) -> Checkpoint:
        self.events += 1
        if self.plain:  # the last entry of its commit log is gone, or more of them, which an error says
            steps = 1 if self.rng.random() < 0.7 else self.rng.randint(1, 3)
            checkpoint.done = max(0, checkpoint.newest - steps)
            return checkpoint
        match self.rng.randrange(4):
            case 0:
                return Checkpoint(f"{checkpoint.name}'")  # lost: another one under the same job
            case 1:
                checkpoint.done = max(0, checkpoint.done - 1)  # the last entry of its commit log is gone
            case 2:
                checkpoint.done = self.rng.randint(0, checkpoint.done)  # restored from an older copy
                del checkpoint.offsets[checkpoint.done :]
        return checkpoint

    def driver_taken_over(self) -> None:
        """A driver that had the job before, and does not have it now, must not commit any more."""
        row = self.cluster.server.store.ledger.get((JOB, DRIVER, ""))
        holders = [driver for driver in self.drivers if driver.session.token]
        if row is not None and row["token"] in [holder.session.token for holder in holders]:
            for holder in holders:
                if holder.session.token != row["token"]:
                    self.checker.superseded(holder.writer, holder.session.token)

    def replays_taken_over(self, newest: Replayer) -> None:
        self.replays.taken_over(newest)

    def undisturbed(self, fiber: Fiber) -> bool:
        """Whether nothing went wrong with `fiber`'s requests or its node."""
        return not fiber.faults and not fiber.node.paused_until and not self.cluster.restarts

    # --- trouble ---

    def next_attempt(self) -> int:
        self._attempts += 1
        return self._attempts

    def cut_off(self, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """The rows of a task; at times the JVM dies half way, and they just end."""
        if not self.network.trouble or "cut_off" not in self.profile.events or self.rng.random() > 0.1:
            return batches
        self.events += 1
        last = batches[-1]
        return [*batches[:-1], last.slice(0, self.rng.randrange(max(1, last.num_rows)))]

    def first_pause(self) -> float:
        """How long a lane waits for its first rows; now and then longer than a label lives, and a claim."""
        if not self._long_waits or self.rng.random() < 0.5:
            return 0.0
        self._long_waits -= 1
        return self.rng.uniform(0.2, 1.0) * LONGEST_WAIT

    def copy_within(self, seconds: float, attempt: LaneAttempt) -> None:
        """Spark takes a lane that waits for so long for slow, and runs its task a second time, also late.

        At times another leader has forgotten the lane's claim by then, as it has all that was begun before.
        """
        if "speculate" in self.profile.events and self.rng.random() < 0.5:
            self.events += 1
            at = self.rng.uniform(0.0, seconds + 5.0)
            if "restart_frontend" in self.profile.events or self.profile.stall:
                self.scheduler.after(min(at, seconds) * self.rng.random(), self.cluster.change_leader)
            self.scheduler.after(at, self._copy, attempt)

    def _copy(self, attempt: LaneAttempt) -> None:
        for driver in self._active():
            for lane, slot in driver.slots.items():
                if attempt in slot.attempts:
                    driver.when_awake(driver.try_lane, lane)
                    return

    def row_pause(self) -> float:
        """How long the next rows are waited for; mostly not at all."""
        if self.profile.slow_rows and self.rng.random() < 0.3:
            return self.rng.choice((0.1, 1.0, 10.0))
        return 0.02 if self.rng.random() < 0.1 else 0.0

    def _sent(self) -> None:
        self._sends += 1
        kind = self._trouble_at.get(self._sends)
        if kind is not None and self.network.trouble:
            self.scheduler.after(self.rng.choice((0.0, 0.01, 0.1)), self._last_failure, kind)

    def _last_failure(self, kind: str) -> None:
        self.events += 1
        match kind:
            case "restart_frontend":
                self.cluster.restart_frontend()
            case "pause":
                self._pause()
            case "crash":
                self._crash()
            case "speculate" | "task_lost":
                self._another_try(is_lost=kind == "task_lost")
            case "clock_jump":
                self.clock.offset += self.rng.uniform(-5000.0, 5000.0)
            case "second_driver":
                if len(self.drivers) < MOST_DRIVERS:
                    same = self.plain or self.rng.random() < 0.5  # plain rows of another checkpoint are other rows
                    self._start_driver(self._last_checkpoint() if same else Checkpoint("other"))

    def _pause(self) -> None:
        nodes: list[Node] = [*self._active(), *self._running()]
        if nodes:
            node = nodes[self.rng.randrange(len(nodes))]
            seconds = 0.2 * (LONGEST_PAUSE / 0.2) ** self.rng.random()
            self.trace.say(node.name, f"is paused for {seconds:.1f} s")
            node.paused_until = self.scheduler.now + seconds
            if isinstance(node, Driver) and self.rng.random() < 0.5:
                self._restart_regardless()

    def _stall(self, node: Node) -> None:
        """A driver hangs right after it sent its commit, and meanwhile another one starts; or a replay hangs."""
        node.paused_until = self.scheduler.now + 0.3 * 100.0 ** self.rng.random()
        self.trace.say(node.name, f"hangs for {node.paused_until - self.scheduler.now:.1f} s")
        if isinstance(node, Replayer):
            self.replays.start_another()
        elif isinstance(node, Driver) and self.rng.random() < 0.5:
            if self.rng.random() < 0.5:
                self._leave_open()
            self._restart_regardless()

    def _leave_open(self) -> None:
        """The last requests of a driver that is long dead arrive: nobody will end this label but a take-over."""
        label = f"{JOB}-dead-{LANE}-{self.next_attempt()}-0_0"
        self.network.troubled.add(label)
        for operation, table in ((Operation.BEGIN, None), (Operation.LOAD, "accounts")):
            self.cluster.server.execute(Request(operation, DATABASE, label, table=table, body=[b"[0]"]))

    def _restart_regardless(self) -> None:
        """A supervisor takes a driver that hangs for dead: another one starts while it still lives."""
        if len(self.drivers) < MOST_DRIVERS:
            self.scheduler.after(self.rng.uniform(0.2, 2.0), self._start_driver, self._last_checkpoint())

    def _crash(self) -> None:
        drivers = self._active()
        if drivers:
            driver = drivers[self.rng.randrange(len(drivers))]
            self.trace.say(driver.name, "is killed")
            driver.alive = False
            for slot in driver.slots.values():
                for attempt in slot.attempts:
                    self.end_task(attempt)
            self._restart_later()

    def _another_try(self, is_lost: bool) -> None:
        lanes = [(d, lane, slot) for d in self._active() for lane, slot in d.slots.items() if slot.messages is None]
        if not lanes:
            return
        driver, lane, slot = lanes[self.rng.randrange(len(lanes))]
        if is_lost:
            last = slot.attempts[-1]
            self.trace.say(last.name, "is lost, as far as Spark knows")
            if self.rng.random() < 0.5:
                last.alive = False
            driver.when_awake(driver.task_failed, lane, ConnectionError("executor lost"))
        else:
            driver.when_awake(driver.try_lane, lane)

    def end_task(self, attempt: LaneAttempt) -> None:
        """A task that nobody needs: killed, asked to stop, or left alone for a while as a zombie."""
        if attempt.result is not None or not attempt.alive:
            return
        fate = self.rng.random() + (0.4 if self.profile.stall else 0.0)
        if fate < 0.3:
            attempt.alive = False
        elif fate < 0.7:
            attempt.when_awake(attempt.stop)
        else:
            self.scheduler.after(self.rng.uniform(0.1, 30.0), attempt.when_awake, attempt.stop)


def run_schedule(seed: int, say: Say | None = None, name: int | None = None, *, ledger: bool = True) -> History:
    """Run the schedule of `seed`, whose history has the seed `name`."""
    return World(seed, say, name, ledger=ledger).run()
