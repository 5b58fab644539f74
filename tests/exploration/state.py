"""States of the abstract protocol as nested tuples of small numbers, and the words for them.

A *writer* is one process that writes batches 1, 2, … under labels of its own. The *ledger* is a table whose versions
become visible in the order of their commits: a row for the job's owner, a row for the lane's owner, and the position. A
*message* is a request that its sender has given up and that the server may execute at any later time, or never.

Tokens are compared, never read, so a token is written as who holds it now: a writer's number, or DEAD once nobody does.
That makes restarts and attempts free: any number of them is explored. A label that nobody holds and that no commit is
on its way for can do nothing, so it is not kept; late begins, late loads and late rollbacks thereby need no message (a
late rollback does what a timeout does, which may come at any time).
"""

from __future__ import annotations

from typing import NamedTuple

# --- tokens ---
PARENT = 6  # the driver of the lane's attempts, which itself does nothing
DEAD = 7  # a token that no process holds any more
NONE = 8  # no row
EARLIER = 9  # a claim of the same lane number in an earlier run of the driver, or an earlier micro-batch

# --- where a writer stands; the numbers are those of docs/inside/exactly-once.md, "How it works" ---
DOWN = 0  # crashed, fenced or finished: may start again at any time
CLAIM = 1
SETTLE = 2  # the claim is committed; list as soon as it is visible
ROLL_BACK = 3
BARRIER = 4
READ = 5
LOAD = 6
CHECK = 7
COMMIT = 8
CONFIRM = 9
RECOVER = 10  # a commit of unknown outcome: roll back, then take over from ourselves

# --- a writer's label ---
NO_LABEL = 0
LOADED = 1
SENT = 2  # loaded, its commit given up and still on its way
COMMITTED = 3
VISIBLE = 4
ABORTED = 5  # rolled back, timed out, or generation B's OK to a commit that rolled back

# --- kinds of entries in the ledger's log, and of messages ---
JOB, LANE, DATA = 0, 1, 2


class Writer(NamedTuple):
    """One writer. `base` is the last batch that it knows to be visible; its label writes the one after it.

    `claimed` is 0 as long as a first attempt writes without a claim. `listed` has a bit for each writer that has the
    label on its list of labels to roll back; `ahead` counts the ledger's commits that the writer waits for. `overtaken`
    says that another writer has taken over since the writer did. Of a repair `base` is the last batch that was visible
    when it read the rows that it writes, and `claimed` is 2 from then on.
    """

    at: int = DOWN
    claimed: int = 1
    base: int = 0
    label: int = NO_LABEL
    listed: int = 0
    ahead: int = 0
    overtaken: int = 0


class State(NamedTuple):
    """Everything. `log` holds commits of the ledger that are not visible yet: (kind, who) and (DATA, batch, who).

    `applied` is a bit mask of committed batches, `position` the visible one. `messages` holds late claims (kind, who)
    and late commits of labels without a holder (DATA, batch, family, listed, overtaken), sorted. The batch of a repair
    that was read behind batch N is -1 - N in messages, and 0 in the log.
    """

    job: int
    lane: int
    position: int
    applied: int
    log: tuple[tuple[int, ...], ...]
    messages: tuple[tuple[int, ...], ...]
    writers: tuple[Writer, ...]


STANDS = (
    "down", "claim", "settle", "roll back", "barrier", "read", "load", "check", "commit", "confirm", "recover",
)  # fmt: skip


class Violation(Exception):
    """An invariant is broken by the move `action`."""

    def __init__(self, kind: str, action: str) -> None:
        self.kind = kind
        self.action = action
        super().__init__(f"{kind} by: {action}")
