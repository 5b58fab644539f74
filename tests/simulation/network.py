"""The way to the server and back: latency, loss, and requests that are executed long after they were given up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from starrocks_txn_sink.coordinator.coordinator import LANE
from starrocks_txn_sink.errors import BadReply, NotSent, QueryFailed, ReplyLost, TransportError
from starrocks_txn_sink.protocol.label import LedgerRequest
from starrocks_txn_sink.protocol.ledger import ReadMarker, WriteClaim
from starrocks_txn_sink.protocol.openings import LaneQuestion
from starrocks_txn_sink.protocol.turns import TurnRequest
from starrocks_txn_sink.protocol.wire import Operation, Reply, Request, Status
from tests.support.model_ledger import WRITES
from tests.support.model_server import Fault

from .cluster import Cluster, Respond
from .profile import Profile
from .scheduler import Fiber, Node
from .trace import Trace
from .turns import TurnDesk

READ_TIMEOUT = 10.0
_UNSEEN = 0.2  # share of claims
_OVERLAPPING = 0.7  # of both, where writers overlap
LATEST = 60.0  # a request that was given up may be executed so much later

_ON_SERVER = {
    Operation.BEGIN: ("refused", "exists", "slow"),
    Operation.LOAD: ("busy", "refused", "backend", "limit", "slow", "foreign"),
    Operation.COMMIT: ("refused", "rolled_back", "limit", "invisible", "slow", "failed_after", "foreign", "lengthy"),
    Operation.ROLLBACK: ("slow",),
    Operation.LOAD_STATE: (),
}
_OF_SERVER = {fault.value: fault for fault in Fault}


class Network:
    """Carries what fibers need to the cluster; chooses a fault for some of it, as long as there is `trouble`."""

    def __init__(self, cluster: Cluster, profile: Profile, rng: Random, trace: Trace) -> None:
        self.trouble = True
        self.turns = TurnDesk(cluster.scheduler, Random(repr(profile)))
        self.faults = 0
        self.troubled: set[str] = set()  # labels with a request that was lost, late or executed unseen
        self.listen: Callable[[], None] = lambda: None
        self.stall: Callable[[Node], None] = lambda _: None
        self.overlaps = False  # claims stay unseen for long, and what is committed meanwhile lies on the server
        self._unseen: tuple[Node, float] | None = None  # who has claimed while nobody could see it, and when
        self._lying: list[_Late] = []
        self._begun: set[str] = set()  # labels with a begin on its way
        self._cluster = cluster
        self._scheduler = cluster.scheduler
        self._profile = profile
        self._rng = rng
        self._trace = trace
        way = tuple(kind for kind in ("not_sent", "lost_before", "lost_after", "late", "bad_reply") if self._has(kind))
        self._kinds = {
            operation: way + way + tuple(kind for kind in kinds if self._has(kind))
            for operation, kinds in _ON_SERVER.items()
        }
        self._reads, self._writes = way, way + tuple(kind for kind in ("invisible",) if self._has(kind))

    def _has(self, kind: str) -> bool:
        return kind in self._profile.faults

    def send(self, needed: Any, fiber: Fiber) -> None:
        """Bring `needed` (a Request or a Question) to the cluster and its answer to `fiber`."""
        if isinstance(needed, TurnRequest):
            self.turns.ask(needed, fiber)
        elif isinstance(needed, LaneQuestion):
            self.turns.hear(needed, fiber)
        else:
            self._bring(needed, fiber)

    def _bring(self, needed: Any, fiber: Fiber) -> None:
        self.listen()
        self._begin_once(needed)
        self._execute_next_to(needed, fiber.node)
        collides = isinstance(needed, Request) and self.turns.collides(needed, fiber)
        fault = self._stalled(needed, fiber) or self._choose(needed) or ("collided" if collides else None)
        respond = self._respond(needed, fiber)
        latency = self._rng.random() * 0.02
        if fault is not None:
            fiber.faults += 1
            self._trace.say(fiber.node.name, lambda: f"{shown(needed)} … {fault}")
            if isinstance(needed, Request):
                self.troubled.add(needed.label)
        match fault:
            case "not_sent":
                self._scheduler.after(latency, respond, NotSent("refused"))
            case "lost_before":
                self._scheduler.after(self._patience(fiber), respond, _lost(needed))
            case "lost_after":
                self._scheduler.after(latency, self._cluster.execute, needed, None, _silent)
                self._scheduler.after(self._patience(fiber), respond, _lost(needed))
            case "failed_after":
                self._scheduler.after(latency, self._cluster.execute, needed, None, self._refusing(respond))
            case "bad_reply":
                self._scheduler.after(latency, self._cluster.execute, needed, None, _silent)
                self._scheduler.after(latency * 2, respond, _bad(needed))
            case "late":
                self._execute_late(needed, fiber.node)
                self._scheduler.after(self._patience(fiber), respond, _lost(needed))
            case "slow":
                self._scheduler.after(
                    self._rng.uniform(0.1, READ_TIMEOUT), self._cluster.execute, needed, None, respond
                )
            case _:
                on_server = _OF_SERVER[fault] if fault else None
                self._scheduler.after(latency, self._cluster.execute, needed, on_server, respond)

    def _begin_once(self, needed: Any) -> None:
        """A label that lanes share has one begin, whatever its answer: of two nobody knows which one took effect."""
        if not isinstance(needed, Request) or needed.operation is not Operation.BEGIN:
            return
        label = needed.label
        if label in self._begun and LANE in label.rsplit("-", 3):
            self.turns.broken(f"{label} is begun a second time.")
        self._begun.add(label)

    def _respond(self, needed: Any, fiber: Fiber) -> Respond:
        """Answer the fiber once, whatever comes first: the reply, or the end of its patience."""
        is_answered = False

        def respond(answer: object) -> None:
            nonlocal is_answered
            if is_answered:
                return
            is_answered = True
            self._trace.say(fiber.node.name, lambda: f"{shown(needed)} → {answer_of(answer)}")
            fiber.resume(answer)

        self._scheduler.after(min(READ_TIMEOUT, fiber.left()), respond, _lost(needed))
        return respond

    def _refusing(self, respond: Respond) -> Respond:
        """Answer FAILED to a commit that took effect, as the second sending of a proxy gets it; at times the leader
        has changed before the answer arrives.
        """

        def refuse(answer: object) -> None:
            if isinstance(answer, Reply) and answer.status is Status.OK:
                if self._rng.random() < 0.7:
                    self._cluster.change_leader()
                answer = Reply(Status.FAILED, "Can not commit CANCELLED transaction")
            respond(answer)

        return refuse

    def _stalled(self, needed: Any, fiber: Fiber) -> str | None:
        commit = _is_commit(needed)
        if not (commit or isinstance(needed, WriteClaim)) or not self.trouble:
            return None
        unseen = _OVERLAPPING if self.overlaps else _UNSEEN
        if self._rng.random() >= (self._share(fiber.node) if commit else unseen):
            return None
        self.faults += 1
        if not commit:
            self._unseen = fiber.node, self._scheduler.now
            # The claim is answered while nobody can see it yet.
            return "invisible" if self.overlaps else self._rng.choice(("invisible", "late"))
        if self.overlaps and self._has_unseen_successor(fiber.node):
            fiber.node.paused_until = self._scheduler.now + 0.3 * 100.0 ** self._rng.random()
            return "late"
        self.stall(fiber.node)
        return self._rng.choice(("lost_before", "late", "lost_after", "lost_after", "invisible"))

    def _share(self, node: Node) -> float:
        """The share of stalled commits: large for a writer who could not see the claim of its successor."""
        if self._has_unseen_successor(node):
            return _OVERLAPPING if self.overlaps else 0.5
        return max(self._profile.stall, node.stall)

    def _has_unseen_successor(self, node: Node) -> bool:
        claim = self._unseen
        return claim is not None and claim[0] is not node and self._scheduler.now < claim[1] + 20.0

    def _choose(self, needed: Any) -> str | None:
        if not self.trouble or self._rng.random() >= self._profile.rate:
            return None
        if isinstance(needed, Request):
            kinds = self._kinds[needed.operation]
        else:
            kinds = self._writes if isinstance(needed, WRITES) else self._reads
        if not kinds:
            return None
        self.faults += 1
        return kinds[self._rng.randrange(len(kinds))]

    def _patience(self, fiber: Fiber) -> float:
        """A connection breaks at once, or nothing comes until the client gives up."""
        return min(fiber.left(), 0.01 if self._rng.random() < 0.5 else READ_TIMEOUT)

    # --- requests that are executed long after they were given up ---

    def _execute_late(self, needed: Any, node: Node) -> None:
        """Some time later. Half of the commits and claims wait for the steps of another writer instead."""
        lies = (_is_commit(needed) or isinstance(needed, WriteClaim)) and self._rng.random() < 0.5
        late = _Late(node, needed)
        if lies:
            self._lying.append(late)
        self._scheduler.after(LATEST if lies else self._lateness(), self._execute, late)

    def _execute_next_to(self, needed: Any, node: Node) -> None:
        """A step of a take-over or of a commit: some of what lies on the server is executed right before or after."""
        if not isinstance(needed, Request | LedgerRequest) or isinstance(needed, ReadMarker):
            return
        for late in self._lying:
            if late.node is not node and self._rng.random() < 0.15:
                fault = Fault.INVISIBLE if self._rng.random() < 0.5 else None
                self._scheduler.after(self._rng.random() * 0.1, self._execute, late, fault)

    def _execute(self, late: _Late, fault: Fault | None = None) -> None:
        if late.waits:
            late.waits = False
            self._lying = [late_request for late_request in self._lying if late_request is not late]
            self._cluster.execute(late.needed, fault, _silent)

    def _lateness(self) -> float:
        return float(0.03 * (LATEST / 0.03) ** self._rng.random())


@dataclass(slots=True)
class _Late:
    """A request of `node` that was given up and is not executed yet."""

    node: Node
    needed: Any
    waits: bool = True


def _is_commit(needed: Any) -> bool:
    return isinstance(needed, Request) and needed.operation is Operation.COMMIT


def _silent(answer: object) -> None:
    """Nobody hears the answer."""


def _lost(needed: Any) -> TransportError:
    return ReplyLost("lost") if isinstance(needed, Request) else QueryFailed("lost")


def _bad(needed: Any) -> TransportError:
    return BadReply("HTML instead of JSON") if isinstance(needed, Request) else QueryFailed("broken")


def shown(needed: Any) -> str:
    if isinstance(needed, Request):
        return " ".join(part for part in (needed.operation.value, needed.label, needed.table) if part)
    token = getattr(needed, "token", None) or getattr(getattr(needed, "owner", None), "token", "")
    return f"{type(needed).__name__} {token}".strip()


def answer_of(answer: object) -> str:
    if isinstance(answer, TransportError):
        return type(answer).__name__
    state = getattr(answer, "state", None)
    if state is not None:
        return str(state.value)
    status = getattr(answer, "status", None)
    return f"{status.value} {getattr(answer, 'message', '')}".strip() if status is not None else str(answer)
