"""What `sync` says while it runs: a line at its start, one that is renewed or comes each minute, and a sum at the end.

On a terminal the noise of Spark, Ivy and Kafka's client goes to a file; elsewhere a collector of logs wants it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TextIO

from starrocks_txn_ops.command_line import CLEAR, duration, renewed
from starrocks_txn_sink.coordinator.pace import Reason
from starrocks_txn_sink.telemetry import Event

RENEWED_SECONDS: Final = 1.0
LINE_SECONDS: Final = 60.0
_RATE_SECONDS: Final = 10.0  # over which rows are counted for the rate
_LAST_CHARACTERS: Final = 4096


@dataclass(slots=True)
class Told:
    """What the events of a query have told so far; times are seconds of one clock."""

    started: float
    rows: int = 0
    commits: int = 0
    dead_lettered: int = 0
    committed: float | None = None
    behind: int | None = None
    asked: float | None = None
    """When `behind` was told."""
    snapshot: str = ""
    endless: bool = False
    """No row will show the snapshot's end, so it counts as over once all messages are read."""
    waiting: str = ""
    paused_until: float = 0.0
    pace: str = ""
    late: str = ""
    recent: list[tuple[float, int]] = field(default_factory=list)
    """Times and rows of the newest commits."""

    def take(self, event: Event, now: float) -> None:
        """Take an event of the sink's listener or of the query's progress; others change nothing."""
        fields = event.fields
        if event.name == "receipt.collected":
            rows = fields["receipt"].rows
            self.rows, self.commits, self.committed = self.rows + rows, self.commits + 1, now
            self.dead_lettered += fields["receipt"].dead_lettered_rows
            self.recent = [*(pair for pair in self.recent if now - pair[0] < _RATE_SECONDS), (now, rows)]
        elif event.name == "query.progressed":
            lags = fields["progress"].lags
            self.behind, self.asked = (sum(lags.values()) if lags else None), now
        elif event.name == "source.lagged":
            self.behind, self.asked = sum(fields["partitions"].values()), now
        elif event.name == "snapshot.progressed":
            self.endless = fields["over"] + fields["unknown"] == fields["tables"] > fields["over"]
            self.snapshot = count_of(fields["tables"], "table") if self.endless else str(fields["text"])
        elif event.name == "snapshot.ended":
            self.snapshot = ""
        elif event.name == "commits.paced":
            self.paused_until = now + fields["pause"]
            if fields["pause"] or fields["reason"] != Reason.GOAL.value:  # else it says how long this one took
                self.pace = f"a commit each {fields['interval']:.2g} s ({fields['reason']})"
        elif event.name in ("freshness.missed", "freshness.met"):
            missed = event.name == "freshness.missed"
            self.late = f"{fields['late']:.0%} of rows later than {fields['freshness']:g} s" if missed else ""
        elif event.name in ("outage.waiting", "job.held", "outage.ended"):
            self.waiting = str(fields.get("code", ""))

    def line(self, now: float) -> str:
        """The state of the query in one line; what a narrow terminal must not cut off comes first."""
        since = min(_RATE_SECONDS, max(now - self.started, 1.0))
        rate = sum(rows for at, rows in self.recent if now - at < _RATE_SECONDS) / since
        parts = [f"waiting: {self.waiting}"] if self.waiting else []
        if self.dead_lettered:
            parts.append(f"{self.dead_lettered:,} rows are dead letters")
        if self.snapshot and not (self.endless and self.behind == 0):
            parts.append(f"snapshot: {self.snapshot}{self._of_rows()}")
        parts.append(f"{rate:,.0f} rows/s")
        if self.behind is not None:
            parts.append(f"{count_of(self.behind, 'message')} behind")
        parts.append("no commit yet" if self.committed is None else f"last commit {_ago(now - self.committed)}")
        parts.append(f"{count_of(self.rows, 'row')} in {count_of(self.commits, 'commit')}")
        parts += [part for part in (self.late, self.pace) if part]
        return ", ".join(parts)

    def _of_rows(self) -> str:
        """How many rows of a snapshot this run has written, of those that the topics had for it so far, if known since
        the last commit: those of an open micro-batch still count as behind."""
        if self.behind is None or self.asked is None or (self.committed is not None and self.asked < self.committed):
            return f", {count_of(self.rows, 'row')}"
        return f", {self.rows:,} of about {self.rows + self.behind:,} rows"

    def sum(self, now: float) -> str:
        """All of the run in one line."""
        seconds = now - self.started
        text = f"{count_of(self.rows, 'row')} in {count_of(self.commits, 'commit')}, {duration(seconds)}"
        if self.rows:
            text += f", {self.rows / max(seconds, 1.0):,.0f} rows/s"
        return text + (f", {self.dead_lettered:,} rows are dead letters" if self.dead_lettered else "")


def count_of(number: int, noun: str) -> str:
    """A number of things, as a text."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _ago(seconds: float) -> str:
    return f"{seconds:.1f} s ago" if seconds < 10 else f"{duration(seconds)} ago"


class Talk:
    """Prints to `out` what a query tells as a listener, while it is `running`; on a terminal one line is renewed."""

    def __init__(self, out: TextIO | None = None, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._out, self._monotonic = out or sys.stderr, monotonic
        self.on_terminal = self._out.isatty()
        self._told = Told(monotonic())
        self._guard = threading.RLock()  # a signal's handler may print in the middle of a line
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._shown = False

    def __call__(self, event: Event) -> None:
        with self._guard:
            self._told.take(event, self._monotonic())
        if event.name == "job.held" and not self.on_terminal:  # a log's next line of its own may be a minute away
            self.say("a command holds the job (job_held); it goes on by itself")

    def is_paused(self, _query: str) -> bool:
        """Whether the sink pauses behind a commit, so that all rows that were planned are visible."""
        with self._guard:
            return self._monotonic() < self._told.paused_until

    def say(self, text: str) -> None:
        """Print a line of its own."""
        with self._guard, contextlib.suppress(OSError, ValueError):  # nobody may listen any more
            self._out.write(f"{CLEAR if self._shown else ''}sync: {text}\n")
            self._out.flush()
            self._shown = False

    @contextlib.contextmanager
    def running(self, text: str) -> Iterator[None]:
        """Say `text`, then how the query does while the block lasts, then what it has done."""
        self.say(text)
        standard, sys.stderr = sys.stderr, _Others(self) if self.on_terminal else sys.stderr
        self._thread = threading.Thread(target=self._tell, name="sync-talk", daemon=True)
        self._thread.start()
        try:
            yield
        finally:
            self._ended.set()
            self._thread.join()
            sys.stderr = standard
            self.say(f"ended: {self._told.sum(self._monotonic())}")

    def write_other(self, text: str) -> None:
        """Write what somebody else prints, in place of the renewed line."""
        with self._guard:
            self._out.write(f"{CLEAR if self._shown else ''}{text}")
            self._shown = False

    def renew(self) -> None:
        """Show how the query does: in place of the line before, or as a line of its own."""
        if not self.on_terminal:
            self.say(self._told.line(self._monotonic()))
            return
        with self._guard, contextlib.suppress(OSError, ValueError):
            self._out.write(renewed(self._told.line(self._monotonic())))
            self._out.flush()
            self._shown = True

    def _tell(self) -> None:
        while not self._ended.wait(RENEWED_SECONDS if self.on_terminal else LINE_SECONDS):
            self.renew()


class _Others:
    """Standard error while a line is renewed: what others write clears it first."""

    def __init__(self, talk: Talk) -> None:
        self._talk, self._out = talk, sys.stderr

    def write(self, text: str) -> int:
        self._talk.write_other(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)


@contextlib.contextmanager
def quiet_children(job: str, say: Callable[[str], None]) -> Iterator[None]:
    """Let the processes that start in the block, Spark's JVM and its own, write to a file that `say` hears of first.

    If the block fails, the end of the file comes to standard error, since it says why.
    """
    name = "".join(character if character.isalnum() else "-" for character in job)
    # A new file each time: one of a known name may be another user's, or that of a run of the job that goes on.
    log, file = tempfile.mkstemp(prefix=f"starrocks-txn-sink-{name}-", suffix=".log")
    say(f"starting Spark; what Spark, Ivy and Kafka's client say is in {file}")
    kept = os.dup(1), os.dup(2)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    failed = True
    try:
        os.dup2(log, 1)
        os.dup2(log, 2)
        yield
        failed = False
    finally:
        for number, descriptor in zip((1, 2), kept, strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.close(log)
        if failed:
            sys.stderr.write(Path(file).read_text(encoding="utf-8", errors="replace")[-_LAST_CHARACTERS:])
