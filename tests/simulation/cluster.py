"""StarRocks on the virtual clock: commits that take their time, publishing, forgetting, restarts."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from starrocks_txn_sink.errors import NotSent, ReplyLost
from starrocks_txn_sink.protocol.bound import WriteBound
from starrocks_txn_sink.protocol.ledger import ListUnfinished, WriteClaim, WriteMarker
from starrocks_txn_sink.protocol.wire import Operation, Request
from tests.support.model_ledger import WRITES, ModelLedger
from tests.support.model_server import Fault, ModelServer

from .profile import Profile
from .scheduler import Scheduler
from .trace import Trace

Respond = Callable[[object], None]
PUBLISH_WAIT = 5.0  # a commit's reply waits at most so long for its rows to become visible, then it says OK


class Cluster:
    """Executes requests and questions when they arrive; answers when the server would."""

    def __init__(
        self,
        scheduler: Scheduler,
        profile: Profile,
        rng: Random,
        trace: Trace,
        make_server: Callable[[str], ModelServer] = ModelServer,
    ) -> None:
        self.scheduler = scheduler
        self.server = make_server(profile.generation)
        self.ledger = ModelLedger(self.server)
        self._profile = profile
        self._rng = rng
        self._trace = trace
        self._down_until = 0.0
        self.restarts = 0

    def execute(self, needed: Any, fault: Fault | None, respond: Respond) -> None:
        """`needed` has arrived: it takes effect now."""
        self.server.now = self.scheduler.now
        self.server.expire()
        if self.scheduler.now < self._down_until:
            self._reply(respond, NotSent("the frontend is starting"))
        elif isinstance(needed, Request):
            if needed.operation is Operation.COMMIT:
                if fault is Fault.FOREIGN:
                    self.server.roll_back(needed.label)
                self._commit(needed.label, fault, respond)
            else:
                self._reply(respond, self.server.execute(needed, fault))
                self._maybe_forget(needed.label)
        elif isinstance(needed, WRITES):
            self._insert(needed, fault, respond)
        else:
            answer = self.ledger.read(needed)
            if isinstance(needed, ListUnfinished):  # in no order
                answer = tuple(self._rng.sample(answer, len(answer)))
            self._reply(respond, answer)

    def restart_frontend(self) -> None:
        """The frontend dies and starts again; what was live in its memory is gone."""
        self.restarts += 1
        self._down_until = self.scheduler.now + self._rng.uniform(0.1, 3.0)
        self.change_leader()

    def change_leader(self) -> None:
        """Another frontend leads, and knows less."""
        forget = self._rng.random() < 0.5
        self._trace.say("frontend", f"restarts, live labels {'forgotten' if forget else 'cancelled'}")
        self.server.restart(forget)

    def _reply(self, respond: Respond, answer: object) -> None:
        self.scheduler.after(self._rng.random() * 0.02, respond, answer)

    # --- commits and inserts ---

    def _commit(self, label: str, fault: Fault | None, respond: Respond) -> None:
        reply = self.server.start_commit(label)
        if reply is not None:
            self._reply(respond, reply)
            return
        seconds = self._rng.choice((0.005, 0.05, 0.3)) if fault is not Fault.LENGTHY else self._rng.uniform(5.0, 40.0)
        self.scheduler.after(seconds, self._finish, label, fault, respond, self.restarts)

    def _finish(self, label: str, fault: Fault | None, respond: Respond, restarts: int) -> None:
        self.server.now = self.scheduler.now
        reply = self.server.finish_commit(label, fault)
        if reply is None or restarts != self.restarts:
            if self._rng.random() < 0.8:  # the connection breaks with the frontend; else nobody answers, ever
                self._reply(respond, ReplyLost("the frontend died"))
            if reply is not None:
                self._publish_later(label, fault, lambda: None)
            return
        if label not in self.server.store.pending():
            self._reply(respond, reply)
            self._maybe_forget(label)
            return
        self._trace.say("frontend", f"{label} is committed")
        self._publish_later(label, fault, lambda: self._reply(respond, reply))

    def _insert(self, question: WriteClaim | WriteMarker | WriteBound, fault: Fault | None, respond: Respond) -> None:
        name = self.ledger.insert(question)
        self._publish_later(name, fault, lambda: self._reply(respond, None))

    def _publish_later(self, name: str, fault: Fault | None, answer: Callable[[], None]) -> None:
        delay = self._rng.uniform(1.0, 20.0) if fault is Fault.INVISIBLE else self._rng.choice((0.0, 0.01, 0.1))
        self.scheduler.after(delay, self._publish, name)
        self.scheduler.after(min(delay, PUBLISH_WAIT, self._rng.choice((0.05, PUBLISH_WAIT))), answer)

    def _publish(self, name: str) -> None:
        before = len(self.server.commits)
        self.server.publish(name)
        for label in self.server.commits[before:]:
            self._trace.say("frontend", f"{label} is visible")
            self._maybe_forget(label)

    # --- retention ---

    def _maybe_forget(self, label: str) -> None:
        if self._profile.forget and self._rng.random() < self._profile.forget:
            self.scheduler.after(0.005 * 4000.0 ** self._rng.random(), self._forget, label)

    def _forget(self, label: str) -> None:
        task = self.server.tasks.get(label)
        if task is not None and task.state in ("COMMITED", "CANCELLED") and label not in self.server.store.pending():
            self._trace.say("frontend", f"{label} is forgotten")
            if self._rng.random() < 0.2:
                del self.server.tasks[label]
            else:
                self.server.forget(label)
