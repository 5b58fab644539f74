"""This process and its descendants, without other benchmarks' servers: processor time and memory.

Spark ends Python workers that have had nothing to do for a minute, and what they used goes with them, so what was seen
of a process counts on after its end.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import psutil


@dataclass(slots=True)
class Family:
    """`whole` and `python` are CPU seconds of all processes seen so far, and of those that run Python, in seconds;
    `workers_rss` is the memory of the Python processes but this one, now, in bytes."""

    whole: float = 0.0
    python: float = 0.0
    workers_rss: int = 0
    _seen: dict[psutil.Process, tuple[float, bool]] = field(default_factory=dict)

    def look(self) -> Family:
        """Look at every process again. What one uses between the last look and its end is lost."""
        me = psutil.Process()
        self.workers_rss = 0
        for process in (me, *me.children(recursive=True)):
            try:
                self._note(process, process == me)
            except psutil.Error:
                continue  # it has ended meanwhile
        self.whole = sum(seconds for seconds, _ in self._seen.values())
        self.python = sum(seconds for seconds, is_python in self._seen.values() if is_python)
        return self

    def _note(self, process: psutil.Process, is_me: bool) -> None:
        with process.oneshot():
            if not is_me and "benchmarks." in " ".join(process.cmdline()):
                return
            times, is_python = process.cpu_times(), "python" in process.name()
            self._seen[process] = (times.user + times.system, is_python)
            if is_python and not is_me:
                self.workers_rss += process.memory_info().rss
