"""The crash matrix: reach a site, kill or pause, let the job go on, and compare the tables with the truth.

One driver process serves site after site until it is killed; the next one recovers that site first. A reader looks at
the tables all the time. The last look is taken when the last late request has been carried out.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import pymysql
from typing_extensions import Self

from starrocks_emulator.process import EmulatorProcess
from tests.crash import workload
from tests.crash.driver_process import DriverEnded, DriverProcess
from tests.crash.query_proxy import Hold, QueryProxy
from tests.crash.sites import LATE_SECONDS, TIMEOUT, Site
from tests.crash.workload import Verdict
from tests.support.query_port import query

_REACH_SECONDS = 300.0
_RUN_SECONDS = 300.0  # beside other work; the sink itself ends by its deadlines
_TRIES = 3
_OPEN = (
    "SELECT count(DISTINCT LABEL) FROM information_schema.loads WHERE DB_NAME = %s"
    " AND STATE NOT IN ('FINISHED', 'CANCELLED', 'COMMITED')"
)


class NotReached(TimeoutError):
    """The site did not come up in time, so nothing was killed there: this says nothing about the sink."""


@dataclass
class Case:
    """One site with its own database, job, source and checkpoint; one that was not `reached` has no verdict."""

    site: Site
    place: int
    folder: Path
    recovered: bool = False
    reached: bool = True
    samples: int = 0
    seen: Verdict = field(default_factory=Verdict)
    messages: list[str] = field(default_factory=list)

    @property
    def database(self) -> str:
        return f"site_{self.place}"

    @property
    def job(self) -> str:
        return f"crash{self.place}"


class Reader:
    """Judges the tables of one case again and again, each time with one SQL statement, on a connection of its own."""

    def __init__(self, case: Case, ask: Callable[..., list[tuple[Any, ...]]]) -> None:
        self._case = case
        self._ask = ask
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(20)

    def _look(self) -> None:
        while not self._over.wait(0.05):
            with suppress(pymysql.MySQLError, OSError):
                verdict = workload.judge(self._ask(workload.JUDGEMENT.format(self._case.database)))
                self._case.samples += 1
                self._case.seen = max(self._case.seen, verdict, key=lambda verdict: (verdict.torn, verdict.duplicated))


class Matrix:
    """Runs sites; a context manager that leaves no process behind. `say` gets the progress."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._say = say
        self._server = EmulatorProcess(folder / "server")
        self._driver: DriverProcess | None = None
        self._proxy: QueryProxy | None = None
        self._drivers = 0
        self._late_until = 0.0

    def __enter__(self) -> Self:
        self._server.start()
        self._proxy = QueryProxy(self._server.query_port)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._driver is not None:
            self._driver.kill()
        if self._proxy is not None:
            self._proxy.__exit__(None, None, None)
        self._server.kill()

    def run(self, sites: Sequence[Site]) -> list[Case]:
        """Run all of them and judge them at the end."""
        cases = [Case(site, place, self._folder / str(place)) for place, site in enumerate(sites)]
        for case in cases:
            began = time.monotonic()
            try:
                self._run(case)
            except (TimeoutError, DriverEnded) as error:  # one site that goes wrong must not hide the others
                case.recovered, case.reached = False, not isinstance(error, NotReached)
                case.messages.append(str(error))
                self._start_over()
            how = "recovered" if case.recovered else "NOT RECOVERED" if case.reached else "not reached"
            seconds = time.monotonic() - began
            self._say(f"{case.place + 1}/{len(cases)}  {case.site.name}: {how}, {case.samples} looks, {seconds:.1f} s")
        time.sleep(max(0.0, self._late_until - time.monotonic()))
        for case in cases:
            if case.reached:
                self._judge(case)
        return cases

    # --- one site ---

    def _run(self, case: Case) -> None:
        source = case.folder / "source"
        if case.site.debezium is None:
            workload.write_source(source, files=case.site.files)
        else:
            workload.write_messages(source, case.site.debezium)
        for sql in workload.ddl(case.database):
            self._ask(sql)
        try:
            driver = self._ready()
        except TimeoutError as error:
            raise NotReached(f"{case.site.name} was not reached: {error}") from None
        with Reader(case, self._ask):
            hold = self._arm(case)
            driver.run(self._task(case))
            hold = self._reach(case, hold)
            act = {
                ("driver", "kill"): self._kill_driver,
                ("server", "kill"): self._kill_server,
                ("workers", "kill"): self._kill_workers,
            }
            act.get((case.site.victim, case.site.deed), self._pause_driver)(case, hold)
        case.recovered = case.recovered and self._ask(_OPEN, case.database) == [(0,)]

    def _kill_driver(self, case: Case, hold: Hold | None) -> None:
        self._current().kill()
        self._driver = None
        self._expect_late_requests(case)
        if hold is not None:
            hold.release(forward=case.site.at_start)  # a claim or marker that arrives after its writer died
        self._recover(case)

    def _kill_server(self, case: Case, hold: Hold | None) -> None:
        self._server.kill()
        if hold is not None:
            hold.release(forward=False)
        self._server.start()
        self._finish(case)

    def _kill_workers(self, case: Case, _: Hold | None) -> None:
        """Spark tries the tasks again; the driver then runs all lanes under a new label, and the query goes on."""
        self._current().kill_workers()
        self._expect_late_requests(case)
        answer = self._current().answer(_RUN_SECONDS)
        case.messages.append(str(answer))
        attempts = {receipt["batch"]: receipt["attempts"] for receipt in answer["receipts"]}
        case.recovered = answer["error"] is None and attempts.get(1, 0) > 1

    def _expect_late_requests(self, case: Case) -> None:
        if case.site.phase == "late":
            self._late_until = time.monotonic() + LATE_SECONDS + 2

    def _pause_driver(self, case: Case, hold: Hold | None) -> None:
        """The sleeper's timeout passes, another driver finishes the work, the labels are forgotten; it wakes up."""
        sleeper = self._current()
        sleeper.pause()
        self._driver = None
        try:
            time.sleep(TIMEOUT)
            self._recover(case)
            self._server.faults(
                [
                    {"operation": "get_load_state", "action": "forget_labels", "when": "before"},
                    {"operation": "begin", "action": "forget_labels", "when": "before"},
                    {"operation": "commit", "action": "forget_labels", "when": "before"},
                ]
            )
            sleeper.resume()
            if hold is not None:
                hold.release()
            answer = sleeper.answer(_RUN_SECONDS)
            case.messages.append(str(answer["error"]))
            case.recovered = case.recovered and answer["error"] is not None
        finally:
            sleeper.kill()
        self._server.faults({})

    def _recover(self, case: Case) -> None:
        """A new driver on the same checkpoint runs the query to its end; commits that are held stay held."""
        self._server.faults([])
        self._ready().run(self._task(case))
        self._finish(case)

    def _finish(self, case: Case) -> None:
        """Wait for the query's end; one that failed is started again, as whatever watches a job would do."""
        for _ in range(_TRIES):
            answer = self._current().answer(_RUN_SECONDS)
            if answer["error"] is None:
                case.recovered = True
                return
            case.messages.append(answer["error"])
            self._current().run(self._task(case))
        with suppress(TimeoutError):
            case.recovered = self._current().answer(_RUN_SECONDS)["error"] is None

    # --- reaching it ---

    def _arm(self, case: Case) -> Hold | None:
        """Prepare the stop; a statement that follows requests is held when these have come (`_reach`)."""
        if case.site.rules:
            self._server.faults(case.site.rules_for(case.job))
            return None
        return self._hold(case.site)

    def _hold(self, site: Site) -> Hold:
        assert self._proxy is not None
        return self._proxy.hold(site.statement, site.phase)

    def _reach(self, case: Case, hold: Hold | None) -> Hold | None:
        """Wait until all rules have been applied, and the statement, if there is one, is held."""
        limit, open_rules = time.monotonic() + _REACH_SECONDS, len(case.site.rules)
        while open_rules and sum(rule["applied"] for rule in self._server.fault_report()["rules"]) < open_rules:
            if time.monotonic() > limit:
                raise self._not_reached(case.site)
            time.sleep(0.03)
        if hold is None and case.site.statement:
            hold = self._hold(case.site)
        if hold is not None and not hold.reached.wait(limit - time.monotonic()):
            raise self._not_reached(case.site)
        return hold

    def _not_reached(self, site: Site) -> NotReached:
        return NotReached(f"{site.name} was not reached: {self._current().messages()}")

    # --- means ---

    def _task(self, case: Case) -> dict[str, Any]:
        assert self._proxy is not None
        options = {
            "load_url": self._server.load_url,
            "query_url": self._proxy.url,
            "database": case.database,
            "job": case.job,
            "timeout": TIMEOUT,
            "batch_deadline": 60.0,
            **case.site.options,
        }
        return {
            "source": str(case.folder / "source"),
            "checkpoint": str(case.folder / "checkpoint"),
            "options": options,
            "files": case.site.files,
            "debezium": case.site.debezium,
        }

    def _ready(self) -> DriverProcess:
        if self._driver is None:
            self._drivers += 1
            self._driver = DriverProcess(self._folder / f"driver{self._drivers}")
            self._driver.ready()
        return self._driver

    def _start_over(self) -> None:
        if self._proxy is not None:
            self._proxy.drop_holds()
        if self._driver is not None:
            self._driver.kill()
        self._driver = None
        self._server.start()
        self._server.faults({})

    def _current(self) -> DriverProcess:
        if self._driver is None:
            raise DriverEnded("no driver is running")
        return self._driver

    def _ask(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        return query(self._server, sql, *parameters, read_timeout=20)

    def _judge(self, case: Case) -> None:
        final = workload.judge(self._ask(workload.JUDGEMENT.format(case.database)), workload.expected())
        case.seen = Verdict(final.lost, max(final.duplicated, case.seen.duplicated), max(final.torn, case.seen.torn))
        positions = self._ask(
            f"SELECT name, position, label FROM {case.database}._starrocks_txn_sink_ledger WHERE kind = 'position'"
        )
        newest = workload.newest_positions(case.site.debezium)
        last = re.compile(case.site.label_pattern(case.job, workload.BATCHES - 1))
        case.recovered = (
            case.recovered
            and {name: position for name, position, _ in positions} == newest
            and all(last.search(label) for _, _, label in positions)
        )
