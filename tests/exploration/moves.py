"""Every move that is possible in a state: of the writers, of the server, of late messages, of fate.

`moves` returns (action, next state) pairs and raises Violation for the move that breaks an invariant. An action is
(who, what); a who of -1 is the server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .setups import FIRST, REPAIR, RETRY, Setup
from .state import (
    ABORTED,
    BARRIER,
    CHECK,
    CLAIM,
    COMMIT,
    COMMITTED,
    CONFIRM,
    DATA,
    DEAD,
    DOWN,
    EARLIER,
    JOB,
    LANE,
    LOAD,
    LOADED,
    NO_LABEL,
    NONE,
    PARENT,
    READ,
    RECOVER,
    ROLL_BACK,
    SENT,
    SETTLE,
    VISIBLE,
    State,
    Violation,
    Writer,
)

Action = tuple[int, str]
Move = tuple[Action, State]
SERVER = -1
_OPEN = (LOADED, SENT)
_READ_ONCE = 2  # `claimed` of a repair that has read its rows
_OF_A_HOLD = {
    "list for a hold": "list and roll back",
    "barrier of a hold": "barrier",
    "check of a hold": "owner check",
}
"""Ingredients that two drivers need, too; a repair shows by itself what each is for."""


class Protocol:
    """The moves of one setup."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.without = _OF_A_HOLD.get(setup.without, setup.without)
        self._repairs = tuple(role == REPAIR for role in setup.roles)
        self._family = tuple(0 if role in (FIRST, RETRY) else 1 for role in setup.roles)
        self._kind = tuple(LANE if role in (FIRST, RETRY) else JOB for role in setup.roles)
        # whose labels a writer lists: a driver everybody's, an attempt those of its own run
        self._sees = tuple(
            tuple(j for j in range(len(setup.roles)) if self._kind[i] == JOB or self._family[j] == self._family[i])
            for i in range(len(setup.roles))
        )
        self._steps: dict[int, Callable[[State, int, Writer, list[Move]], None]] = {
            DOWN: self._start,
            CLAIM: self._claim,
            SETTLE: self._list,
            ROLL_BACK: self._roll_back,
            BARRIER: self._owner,
            READ: self._read,
            LOAD: self._load,
            CHECK: self._check,
            COMMIT: self._commit,
            CONFIRM: self._confirm,
            RECOVER: self._recover,
        }

    def moves(self, state: State) -> list[Move]:
        moves: list[Move] = []
        for i, writer in enumerate(state.writers):
            self._steps[writer.at](state, i, writer, moves)
            if writer.at != DOWN:
                moves.append(((i, "crashes"), self._gone(state, i)))
            if writer.label in _OPEN:
                moves.append(((i, "its label times out"), _with(state, i, writer._replace(label=ABORTED))))
            if writer.label == SENT:
                moves.append(((i, "its commit gets lost"), _with(state, i, writer._replace(label=LOADED))))
                self._execute(state, i, writer, writer.at, "its late commit is executed", moves)
        if state.log:
            moves.append(((SERVER, "the ledger's next version becomes visible"), self._published(state)))
        for n in range(len(state.messages)):
            self._late(state, n, moves)
        return moves

    # --- take-over: claim, list, barrier, read ---

    def _start(self, state: State, i: int, _: Writer, moves: list[Move]) -> None:
        early = self._repairs[i] and self.without == "read under the hold"
        writer = Writer(at=CLAIM, base=state.position) if early else Writer(at=CLAIM)
        moves.append(((i, "starts"), _with(state, i, writer)))

    def _claim(self, state: State, i: int, writer: Writer, moves: list[Move]) -> None:
        if self.without == "only dead claims are removed":
            self._forget(state, i, moves)
        kind = self._kind[i]
        token = i if self.without == "fresh claim token" else DEAD
        before = state if self.without == "fresh claim token" else _token_dies(state, i)
        if len(state.log) < self.setup.unseen:
            log = (*before.log, (kind, i))
            ahead = 0 if self.without == "settled claim" else len(log)
            claimed = writer._replace(at=SETTLE, claimed=1, ahead=ahead)
            moves.append(((i, "claims"), _with(before._replace(log=log), i, claimed)))
        if self._may_be_late(state):
            messages = tuple(sorted((*before.messages, (kind, token))))
            moves.append(((i, "claims, gives up waiting"), before._replace(messages=messages)))

    def _list(self, state: State, i: int, writer: Writer, moves: list[Move]) -> None:
        if writer.ahead:
            return
        after = state
        if self.without != "list and roll back":
            writers = list(state.writers)
            for j in self._sees[i]:
                if writers[j].label in _OPEN:
                    writers[j] = writers[j]._replace(listed=writers[j].listed | 1 << i)
            messages = state.messages
            if messages:
                messages = tuple(sorted(self._listed(message, i) for message in messages))
            after = state._replace(writers=tuple(writers), messages=messages)
        moves.append(((i, "lists open labels"), _with(after, i, after.writers[i]._replace(at=ROLL_BACK))))

    def _listed(self, message: tuple[int, ...], i: int) -> tuple[int, ...]:
        if message[0] != DATA or (self._kind[i] != JOB and message[2] != self._family[i]):
            return message
        kind, batch, family, listed, overtaken = message
        return (kind, batch, family, listed | 1 << i, overtaken)

    def _roll_back(self, state: State, i: int, writer: Writer, moves: list[Move]) -> None:
        bit, is_rolled_back = 1 << i, True
        for j, owner in enumerate(state.writers):
            if owner.listed & bit:
                is_rolled_back = False
                label = ABORTED if owner.label in _OPEN else owner.label
                after = owner._replace(label=label, listed=owner.listed & ~bit)
                moves.append(((i, f"rolls back the label of writer {j}"), _with(state, j, after)))
        for n, message in enumerate(state.messages):
            if message[0] == DATA and message[3] & bit:
                is_rolled_back = False
                messages = state.messages[:n] + state.messages[n + 1 :]
                moves.append(((i, "rolls back a label without a writer"), state._replace(messages=messages)))
        if is_rolled_back:
            ahead = 0 if self.without == "barrier" else len(state.log)
            moves.append(((i, "writes the marker"), _with(state, i, writer._replace(at=BARRIER, ahead=ahead))))

    def _owner(self, state: State, i: int, writer: Writer, moves: list[Move]) -> None:
        if writer.ahead:
            return
        if not self._owns(state, i, writer):
            moves.append(((i, "reads the owner: fenced"), self._gone(state, i)))
            return
        family = self._family[i]
        everybody = self._kind[i] == JOB
        writers = tuple(
            w if j == i or not (everybody or self._family[j] == family) else w._replace(overtaken=1)
            for j, w in enumerate(state.writers)
        )
        messages = tuple((*m[:4], 1) if m[0] == DATA and (everybody or m[2] == family) else m for m in state.messages)
        after = state._replace(writers=writers, messages=tuple(sorted(messages)))
        moves.append(((i, "reads the owner: itself"), _with(after, i, writer._replace(at=READ, overtaken=0))))

    def _read(self, state: State, i: int, writer: Writer, moves: list[Move]) -> None:
        self._forget(state, i, moves)
        if self._repairs[i]:
            self._read_rows(state, i, writer, moves)
            return
        if self.without == "positions decide" and writer.label != NO_LABEL:
            is_visible = writer.label == VISIBLE
            sentence = "finds its label there" if is_visible else "does not find its label"
            self._continue(state, i, writer, writer.base + is_visible, sentence, moves)
            return
        self._continue(state, i, writer, state.position, "reads the position", moves)

    def _read_rows(self, state: State, i: int, writer: Writer, moves: list[Move]) -> None:
        """A repair reads the rows that it writes; after an unknown outcome it writes the same ones, unless they are."""
        if writer.label == VISIBLE:
            moves.append(((i, "finds its marker"), self._gone(state, i)))
            return
        early = self.without == "read under the hold" or writer.claimed == _READ_ONCE
        base = writer.base if early else state.position
        after = writer._replace(at=LOAD, base=base, claimed=_READ_ONCE, label=NO_LABEL, listed=0)
        moves.append(((i, f"has rows as they are behind batch {base}"), _with(state, i, after)))

    def _forget(self, state: State, i: int, moves: list[Move]) -> None:
        """A driver removes the owner rows of lanes, which belong to another run than its own."""
        if self._kind[i] != JOB or state.lane == NONE:
            return
        if len(state.log) < self.setup.unseen:
            moves.append(((i, "removes claims of other runs"), state._replace(log=(*state.log, _NO_CLAIM))))
        if self._may_be_late(state):
            messages = tuple(sorted((*state.messages, _NO_CLAIM)))
            moves.append(((i, "removes claims of other runs, gives up waiting"), state._replace(messages=messages)))

    def _continue(self, state: State, i: int, writer: Writer, base: int, sentence: str, moves: list[Move]) -> None:
        """Batches up to `base` are taken for done: they must be visible."""
        action = (i, f"{sentence}, batches up to {base} are done")
        if state.applied & ((1 << base) - 1) != (1 << base) - 1 or (base > state.position):
            raise Violation("lost", self.said(action))
        if base == self.setup.batches:
            moves.append((action, self._gone(state, i)))
            return
        at = CHECK if self.without == "check after the loads" else LOAD
        after = writer._replace(at=at, base=base, label=NO_LABEL, listed=0)
        moves.append((action, _with(state, i, after)))

    # --- a StarRocks transaction: load, check, commit, confirm ---

    def _load(self, state: State, i: int, writer: Writer, moves: list[Move]) -> None:
        at = COMMIT if self.without == "check after the loads" else CHECK
        after = writer._replace(at=at, label=LOADED, listed=0)
        what = "its rows" if self._repairs[i] else f"batch {writer.base + 1}"
        moves.append(((i, f"begins a label and loads {what}"), _with(state, i, after)))

    def _check(self, state: State, i: int, writer: Writer, moves: list[Move]) -> None:
        if self.without != "owner check" and not self._owns(state, i, writer):
            moves.append(((i, "checks the owner: fenced"), self._gone(state, i)))
            return
        at = LOAD if self.without == "check after the loads" else COMMIT
        moves.append(((i, "checks the owner: itself"), _with(state, i, writer._replace(at=at))))

    def _commit(self, state: State, i: int, writer: Writer, moves: list[Move]) -> None:
        if writer.label == LOADED:
            self._execute(state, i, writer, CONFIRM, "commits: OK", moves)
            if self._may_be_late(state):
                after = writer._replace(at=CONFIRM, label=SENT)
                moves.append(((i, "commits, gives up waiting"), _with(state, i, after)))
        if self.without == "confirmation" and writer.label == LOADED:
            return
        failed = _with(state, i, writer._replace(at=LOAD, label=NO_LABEL, listed=0))
        moves.append(((i, "commits: refused, rolled back"), failed))
        if writer.label == ABORTED:
            moves.append(((i, "commits: label unknown"), _with(state, i, writer._replace(at=RECOVER))))

    def _execute(self, state: State, i: int, writer: Writer, at: int, sentence: str, moves: list[Move]) -> None:
        """The commit of a writer's label reaches the server: it takes effect, or is rolled back in spite of its OK."""
        hole = (i, f"{sentence}, yet rolled back")
        if self.without == "confirmation" and at == CONFIRM and writer.at == COMMIT:
            raise Violation("lost", self.said(hole))
        moves.append((hole, _with(state, i, writer._replace(at=at, label=ABORTED))))
        if len(state.log) < self.setup.unseen:
            action = (i, sentence)
            batch = self._batch(i, writer)
            after = self._applied(state, action, batch, i, writer.overtaken)
            moves.append((action, _with(after, i, writer._replace(at=at, label=COMMITTED))))

    def _applied(self, state: State, action: Action, batch: int, who: int, overtaken: int) -> State:
        if batch < 0:
            return self._repaired(state, action, -1 - batch, who, overtaken)
        bit = 1 << (batch - 1)
        if state.applied & bit:
            raise Violation("duplicated", self.said(action))
        if overtaken and not self.without:
            raise Violation("committed after it was taken over", self.said(action))
        return state._replace(applied=state.applied | bit, log=(*state.log, (DATA, batch, who)))

    def _repaired(self, state: State, action: Action, base: int, who: int, overtaken: int) -> State:
        """Rows that were read behind batch `base` are written: a later batch may have changed them."""
        if state.applied != (1 << base) - 1:
            raise Violation("overwritten", self.said(action))
        if overtaken and not self.without:
            raise Violation("committed after it was taken over", self.said(action))
        return state._replace(log=(*state.log, (DATA, 0, who)))

    def _batch(self, i: int, writer: Writer) -> int:
        """What a writer's label has: the number of a batch, -1 - N for a repair read behind batch N."""
        return -1 - writer.base if self._repairs[i] else writer.base + 1

    def _confirm(self, state: State, i: int, writer: Writer, moves: list[Move]) -> None:
        """get_load_state. A label that has ended may be forgotten, which leaves its outcome unknown."""
        label = writer.label
        if label == COMMITTED:
            return
        if label == VISIBLE and self._repairs[i]:
            moves.append(((i, "sees its label visible"), self._gone(state, i)))
        elif label == VISIBLE:
            self._continue(state, i, writer, writer.base + 1, "sees its label visible", moves)
        if label == ABORTED:
            again = writer._replace(at=LOAD, label=NO_LABEL, listed=0)
            moves.append(((i, "sees its label aborted"), _with(state, i, again)))
        if self.without == "settled outcome":
            orphan = self._orphaned(state, i)
            again = orphan.writers[i]._replace(at=LOAD, label=NO_LABEL, listed=0)
            moves.append(((i, "takes an unknown outcome for a failure"), _with(orphan, i, again)))
            return
        moves.append(((i, "cannot learn its label's state"), _with(state, i, writer._replace(at=RECOVER))))

    def _recover(self, state: State, i: int, writer: Writer, moves: list[Move]) -> None:
        if self.without == "positions decide":
            label = ABORTED if writer.label in _OPEN else writer.label
            moves.append(((i, "rolls its label back"), _with(state, i, writer._replace(at=CLAIM, label=label))))
            return
        if self._repairs[i]:  # it is the owner as long as its check says so, and claims nothing again
            label = ABORTED if writer.label in _OPEN else writer.label
            again = writer._replace(at=BARRIER, label=label, listed=0, ahead=len(state.log))
            moves.append(((i, "rolls its label back, writes the marker"), _with(state, i, again)))
            return
        after = _ownerless(state, i) if writer.label == COMMITTED else state
        moves.append(
            ((i, "rolls its label back"), _with(after, i, writer._replace(at=CLAIM, label=NO_LABEL, listed=0)))
        )

    # --- late messages, and the ledger's log ---

    def _late(self, state: State, n: int, moves: list[Move]) -> None:
        message = state.messages[n]
        messages = state.messages[:n] + state.messages[n + 1 :]
        moves.append(((SERVER, "a late request gets lost"), state._replace(messages=messages)))
        if len(state.log) >= self.setup.unseen:
            return
        after = state._replace(messages=messages)
        if message[0] != DATA:
            request = "removal of claims" if message == _NO_CLAIM else "claim"
            moves.append(((SERVER, f"a late {request} is executed"), after._replace(log=(*state.log, message))))
            return
        what = "a repair" if message[1] < 0 else f"batch {message[1]}"
        action = (SERVER, f"a late commit of {what} is executed, its writer is gone")
        moves.append((action, self._applied(after, action, message[1], DEAD, message[4])))

    def _published(self, state: State) -> State:
        entry, log = state.log[0], state.log[1:]
        job, lane, position = state.job, state.lane, state.position
        writers = [w._replace(ahead=w.ahead - 1) if w.ahead else w for w in state.writers]
        if entry[0] == JOB:
            job = entry[1]
        elif entry[0] == LANE:
            # claims of other runs or micro-batches have rows of their own
            if entry[1] != EARLIER or self.without == "claims of one batch":
                lane = entry[1]
        else:
            position, writer = entry[1] or position, entry[2]
            if writer != DEAD:
                writers[writer] = writers[writer]._replace(label=VISIBLE)
        return State(job, lane, position, state.applied, log, state.messages, tuple(writers))

    # --- who owns, and who is gone ---

    def _owns(self, state: State, i: int, writer: Writer) -> bool:
        if self._kind[i] == JOB:
            return state.job == i
        if state.job != PARENT:
            return False
        return state.lane == i if writer.claimed else state.lane in (NONE, EARLIER)

    def _may_be_late(self, state: State) -> bool:
        return len(state.messages) + sum(w.label == SENT for w in state.writers) < self.setup.late

    def _gone(self, state: State, i: int) -> State:
        """The writer is no more; what it has sent is still on its way."""
        after = _token_dies(self._orphaned(state, i), i)
        if state.writers[i].at == ROLL_BACK:
            after = _unlisted(after, 1 << i)
        return _with(after, i, _GONE)

    def _orphaned(self, state: State, i: int) -> State:
        """The writer lets go of its label."""
        writer = state.writers[i]
        if writer.label not in (SENT, COMMITTED):
            return state
        after = state
        if writer.label == SENT:
            message = (DATA, self._batch(i, writer), self._family[i], writer.listed, writer.overtaken)
            after = state._replace(messages=tuple(sorted((*state.messages, message))))
        else:
            after = _ownerless(state, i)
        return _with(after, i, writer._replace(label=NO_LABEL, listed=0))

    def said(self, action: Action) -> str:
        writer, sentence = action
        return sentence if writer == SERVER else f"writer {writer} ({self.setup.roles[writer]}) {sentence}"


_GONE = Writer()
_NO_CLAIM = (LANE, NONE)  # in the log and among messages: the lane's owner row is removed


def _made(fields: tuple[Any, ...]) -> State:
    """A state of these fields; `State(...)` and `_replace` take several times as long."""
    return tuple.__new__(State, fields)


def _unlisted(state: State, bit: int) -> State:
    """A writer's list of labels is gone with it."""
    writers = tuple(w._replace(listed=w.listed & ~bit) if w.listed & bit else w for w in state.writers)
    messages = tuple(sorted((*m[:3], m[3] & ~bit, m[4]) if m[0] == DATA else m for m in state.messages))
    return state._replace(writers=writers, messages=messages)


def _with(state: State, i: int, writer: Writer) -> State:
    writers = state.writers
    return _made((*state[:6], (*writers[:i], writer, *writers[i + 1 :])))


def _ownerless(state: State, i: int) -> State:
    """Commits of writer `i` in the log belong to nobody any more."""
    return state._replace(log=tuple((DATA, e[1], DEAD) if e[0] == DATA and e[2] == i else e for e in state.log))


def _token_dies(state: State, i: int) -> State:
    """Writer `i` takes another token, or none: what carries the old one carries nobody's."""
    job, lane, position, applied, log, messages, writers = state
    if log:
        log = tuple([(e[0], DEAD) if e[0] != DATA and e[1] == i else e for e in log])
    if messages:
        messages = tuple(sorted([(m[0], DEAD) if m[0] != DATA and m[1] == i else m for m in messages]))
    return _made((DEAD if job == i else job, DEAD if lane == i else lane, position, applied, log, messages, writers))
