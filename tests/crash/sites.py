"""Where things stop: each numbered step of a StarRocks transaction, before, during and after its effect.

A site is reached in the second micro-batch, so that there is something before it and something after it. The fault
plan stops the request there (or the query proxy a statement), and the matrix then kills or pauses a process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from starrocks_txn_sink.protocol.ledger import LEDGER_TABLE

LATE_SECONDS = 25.0
"""How long a request may lie on the server before it is carried out: long after the next driver's take-over."""
_HELD_SECONDS = 60.0
_INVISIBLE_SECONDS = 12.0

_CHECK = r"SELECT kind, name, token.*name = '[0-9a-f]+/1/0'"  # in the second micro-batch
_CLAIM = r"INSERT INTO .*'driver', ''"
_MARKER = r"INSERT INTO .*'marker'"
_LIST = r"SELECT DISTINCT LABEL"
_READ = r"SELECT name, position"


@dataclass(frozen=True, slots=True)
class Site:
    """One place; `victim` is driver or server, `deed` is kill or pause. Either `rules` or a `statement` stops there."""

    step: str
    phase: str
    victim: str
    deed: str = "kill"
    rules: tuple[dict[str, Any], ...] = ()
    statement: str = ""
    at_start: bool = False  # the statement belongs to the take-over, not to the second micro-batch

    @property
    def name(self) -> str:
        return f"{self.deed} {self.victim}, {self.phase} {self.step}"

    def rules_for(self, job: str) -> list[dict[str, Any]]:
        """The fault plan: only the second micro-batch of `job` meets it, once."""
        return [{"times": 1, "label": f"^{job}-[0-9a-f]+-0-1-", **rule} for rule in self.rules]


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
        yield Site("check", phase, victim, statement=_CHECK)
    for step, pattern in (("claim", _CLAIM), ("list", _LIST), ("barrier", _MARKER), ("read", _READ)):
        for phase in ("before", "after"):
            yield Site(step, phase, victim, statement=pattern, at_start=True)


def _pauses() -> Iterator[Site]:
    """A driver that sleeps past its transaction's timeout, its labels forgotten, while another takes over."""
    yield Site("check", "after", "driver", "pause", statement=_CHECK)
    for operation, phase in (("begin", "after"), ("load", "after"), ("commit", "before"), ("commit", "after")):
        site = _request(operation, phase, "driver")
        yield Site(site.step, phase, "driver", "pause", rules=({**site.rules[0], "action": "delay", "seconds": 2.0},))


def all_sites() -> list[Site]:
    """Kills of the driver, then its pauses, then kills of the server."""
    return [*_requests("driver"), *_statements("driver"), *_pauses(), *_requests("server"), *_statements("server")]
