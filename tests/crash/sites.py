"""Where things stop: each numbered step of a StarRocks transaction, before, during and after its effect.

A site is reached in the second micro-batch, so that there is something before it and something after it. The fault
plan stops the request there (or the query proxy a statement), and the matrix then kills or pauses a process.

Two lanes load under the label, each from a file with a source partition of its own. In the sites of a second round one
lane has both source partitions, in order, and stops after the first one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from starrocks_txn_sink.coordinator.coordinator import LANE
from starrocks_txn_sink.protocol.ledger import LEDGER_TABLE
from tests.crash.workload import Transactions

TIMEOUT = 15
"""Seconds that a StarRocks transaction lives, from before Spark starts the workers; a paused driver sleeps as long."""
LATE_SECONDS = 25.0
"""How long a request may lie on the server before it is carried out: long after the next driver's take-over."""
_HELD_SECONDS = 60.0
_INVISIBLE_SECONDS = 12.0
_ARM_SECONDS = 2.0  # between a request and the statement that is held after it

_CHECK = r"SELECT token, epoch"  # in any micro-batch, and in the take-over
_CLAIM = r"INSERT INTO .*'driver', ''"
_MARKER = r"INSERT INTO .*'marker'"
_LIST = r"SELECT DISTINCT LABEL"
_READ = r"SELECT name, position"


@dataclass(frozen=True, slots=True)
class Site:
    """One place; `victim` is driver, workers (of Python) or server, `deed` is kill or pause.

    Either `rules` or a `statement` stops there, or the first such statement after the rules have been applied.
    """

    step: str
    phase: str
    victim: str
    deed: str = "kill"
    rules: tuple[dict[str, Any], ...] = ()
    statement: str = ""
    at_start: bool = False  # the statement belongs to the take-over, not to the second micro-batch
    rounds: bool = False  # the micro-batch has two rounds
    debezium: Transactions | None = None  # how lanes take Debezium's messages

    @property
    def name(self) -> str:
        where = " of the second round" if self.rounds else f" of debezium, {self.debezium}" if self.debezium else ""
        return f"{self.deed} {self.victim}, {self.phase} {self.step}{where}"

    @property
    def files(self) -> int:
        """Files of a micro-batch: one for each lane."""
        return 1 if self.rounds else 2

    @property
    def options(self) -> dict[str, Any]:
        """How the lanes read. Only those of sorted rows go on in a second round."""
        return {"lanes": 1, "shuffle": True, "commit_interval": 1e-6} if self.rounds else {"lanes": 2}

    def label_pattern(self, job: str, batch: int) -> str:
        """A regular expression of the labels of micro-batch `batch`."""
        return f"^{job}-[0-9a-f]+-{LANE}-{batch}-"

    def rules_for(self, job: str) -> list[dict[str, Any]]:
        """The fault plan: only the second micro-batch of `job` meets it, once."""
        return [{"times": 1, "label": self.label_pattern(job, 1), **rule} for rule in self.rules]


def _request(operation: str, phase: str, victim: str, **more: Any) -> Site:
    """before: never carried out; late: carried out when nobody waits any more; after: its reply is never seen."""
    action = {
        "before": {"action": "hang", "when": "before", "seconds": _HELD_SECONDS},
        "late": {"action": "delay", "when": "before", "seconds": LATE_SECONDS},
        "after": {"action": "delay", "when": "after", "seconds": _HELD_SECONDS},
    }[phase]
    step = {"get_load_state": "confirm", "load": "load"}.get(operation, operation)
    step = "ledger load" if more.get("table") == LEDGER_TABLE else step
    return Site(step, phase, victim, rules=({"operation": operation, **action, **more},))


def _held_commit(victim: str) -> Site:
    """COMMITTED, durable, not yet visible."""
    hold = {"operation": "commit", "action": "hold_commit", "seconds": _INVISIBLE_SECONDS}
    wait = {"operation": "get_load_state", "action": "delay", "when": "after", "seconds": _HELD_SECONDS}
    return Site("publish", "during", victim, rules=(hold, wait))


def _rollback(victim: str, phase: str) -> Site:
    """A load fails, and its label is rolled back."""
    site = _request("rollback", phase, victim)
    failing = {"operation": "load", "table": "debits", "action": "drop", "when": "after"}
    return Site("roll back", phase, victim, rules=(failing, *site.rules))


def _requests(victim: str) -> Iterator[Site]:
    for operation, more in (
        ("begin", {}),
        ("load", {"table": "debits"}),
        ("load", {"table": LEDGER_TABLE}),
        ("commit", {}),
    ):
        phases = ("before", "late", "after") if victim == "driver" else ("before", "after")
        for phase in phases:
            yield _request(operation, phase, victim, **more)
    yield Site(
        "load",
        "in the middle of",
        victim,
        rules=(
            {
                "operation": "load_probe",
                "action": "delay",
                "when": "after",
                "seconds": _HELD_SECONDS,
                "table": "credits",
            },
        ),
    )
    yield _held_commit(victim)
    for phase in ("before", "after"):
        yield _request("get_load_state", phase, victim)
        yield _rollback(victim, phase)


def _statements(victim: str) -> Iterator[Site]:
    for phase in ("before", "after"):
        yield _check(phase, victim)
    for step, pattern in (("claim", _CLAIM), ("list", _LIST), ("barrier", _MARKER), ("read", _READ)):
        for phase in ("before", "after"):
            yield Site(step, phase, victim, statement=pattern, at_start=True)


def _check(phase: str, victim: str) -> Site:
    """The check that follows the ledger rows; their load is answered late, so that the statement can be held."""
    load = {"operation": "load", "table": LEDGER_TABLE, "action": "delay", "when": "after", "seconds": _ARM_SECONDS}
    return Site("check", phase, victim, rules=(load,), statement=_CHECK)


def _second_load(phase: str, victim: str) -> Site:
    """A load of the table that the other lane loads, too, under the same label; late: both loads are."""
    loads = [_request("load", phase, victim, table="debits", nth=nth) for nth in ((1, 2) if phase == "late" else (2,))]
    return replace(loads[-1], step="second lane's load", rules=tuple(load.rules[0] for load in loads))


def _second_loads() -> Iterator[Site]:
    for phase in ("late", "after"):
        yield _second_load(phase, "driver")
        yield _second_load(phase, "workers")
    yield _second_load("after", "server")


def _recovery(phase: str) -> Site:
    """A commit without an answer, of a label that the server forgets: the ledger has its outcome."""
    forget = {"operation": "commit", "action": "forget_labels", "when": "after"}
    lose = {"operation": "commit", "action": "drop", "when": "after"}
    wait = {"operation": "rollback", "action": "delay", "when": "after", "seconds": _ARM_SECONDS}
    return Site("recover", phase, "driver", rules=(forget, lose, wait), statement=_READ)


def _pause(site: Site) -> Site:
    """The same place for a driver that sleeps; its request is answered as soon as it can wake up."""
    *first, last = site.rules
    last = last if site.statement else {**last, "action": "delay", "seconds": 2.0}
    return replace(site, deed="pause", rules=(*first, last))


def _pauses() -> Iterator[Site]:
    """A driver that sleeps past its transaction's timeout, its labels forgotten, while another takes over."""
    yield _pause(_check("after", "driver"))
    yield _pause(_second_load("after", "driver"))
    for operation, phase in (("begin", "after"), ("load", "after"), ("commit", "before"), ("commit", "after")):
        yield _pause(_request(operation, phase, "driver"))


def _second_round() -> Iterator[Site]:
    """The rows of the first round are visible, and the micro-batch is not done."""
    debits = {"table": "debits"}
    for operation, phases, more in (
        ("begin", ("before", "late", "after"), {}),
        ("load", ("late", "after"), debits),
        ("load", ("after",), {"table": LEDGER_TABLE}),
        ("commit", ("before", "late", "after"), {}),
    ):
        for phase in phases:
            yield _request(operation, phase, "driver", **more)
    yield _check("after", "driver")
    for operation, phase in (("begin", "after"), ("commit", "before"), ("commit", "after")):
        yield _pause(_request(operation, phase, "driver"))
    for victim, operation in (("workers", "load"), ("server", "begin"), ("server", "load"), ("server", "commit")):
        yield _request(operation, "after", victim, **debits if operation == "load" else {})


def _in_second_round(site: Site) -> Site:
    """Each round has one request of each kind; the interval has passed when the first rows are read."""
    return replace(site, rounds=True, rules=tuple({**rule, "nth": 2} for rule in site.rules))


def _of_debezium() -> Iterator[Site]:
    """The state of open source transactions and the ledger must agree, whatever happens to the commit."""
    for operation, phases, more in (
        ("begin", ("after",), {}),
        ("load", ("before", "after"), {"table": "debits"}),
        ("load", ("after",), {"table": LEDGER_TABLE}),
        ("commit", ("before", "late", "after"), {}),
        ("get_load_state", ("after",), {}),
    ):
        for phase in phases:
            yield _request(operation, phase, "driver", **more)
    yield _held_commit("driver")
    yield _check("after", "driver")
    for phase in ("before", "after"):
        yield _pause(_request("commit", phase, "driver"))
    yield _request("load", "after", "workers", table="debits")
    for operation in ("load", "commit"):
        yield _request(operation, "after", "server", **({"table": "debits"} if operation == "load" else {}))


def all_sites() -> list[Site]:
    """Kills of the driver, then its pauses, then kills of the server and of workers, then those of a second round.

    Last are those of lanes that take Debezium's messages.
    """
    of_driver = [*_requests("driver"), *_statements("driver"), _recovery("before"), _recovery("after"), *_pauses()]
    of_server = [*_requests("server"), *_statements("server")]
    kinds: tuple[Transactions, ...] = ("whole", "none")
    of_debezium = [replace(site, debezium=kind) for kind in kinds for site in _of_debezium()]
    return [*of_driver, *of_server, *_second_loads(), *map(_in_second_round, _second_round()), *of_debezium]
