"""The class archive that makes itself: where there is none, a process of low priority writes it while a query runs.

It begins a minute after the query's first session, so that short runs never pay for it, and ends with this process at
the latest. The next start of a driver is the faster one.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from starrocks_txn_sink.class_archive import SHARED_FILE, UNFINISHED, archive_file, conf_folder, is_whole
from starrocks_txn_sink.clock import SystemClock
from starrocks_txn_sink.spark_version import DRIVER_JAVA, LATER_COMPILER, active_context
from starrocks_txn_sink.telemetry import Event, Listener

SWITCH: Final = "STARROCKS_TXN_SINK_CLASS_ARCHIVE"
"""Environment variable; `off` keeps the sink from writing an archive by itself."""
_LATER_SECONDS: Final = 60.0
_AGAIN_SECONDS: Final = 7 * 86400.0  # a full disk or a busy machine may be the reason, not Java
_ABANDONED_SECONDS: Final = 3600.0  # no run takes as long
_FREE_BYTES: Final = 2 << 30  # three times what the process takes
_MEMORY: Final = Path("/proc/meminfo")
_LIMITS: Final = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
_GROUP: Final[dict[str, Any]] = {"process_group": 0} if sys.version_info >= (3, 11) else {"start_new_session": True}
"""A group of its own, to end all of it, but not a session: the kernel shares processor time among sessions first, and
heeds `nice` only within one."""
_asked = threading.Event()

Later = Callable[[float, Callable[[], None]], None]


def write_later(job: str, listener: Listener, later: Later | None = None) -> None:
    """Have the archive written in a minute, once a process, if the session could use it and there is none."""
    if not _asked.is_set() and os.environ.get(SWITCH) != "off" and wants_archive(active_context()):
        _asked.set()
        (later or _in_background)(_LATER_SECONDS, lambda: write(job, listener, command()))


def wants_archive(context: Any) -> bool:
    """Whether the JVM of this SparkContext was started here, with recommended_conf(), which found no archive."""
    if getattr(getattr(context, "_gateway", None), "proc", None) is None:
        return False
    options = str(context.getConf().get(DRIVER_JAVA, ""))
    return LATER_COMPILER in options and SHARED_FILE not in options


def command() -> Sequence[str] | None:
    """What writes the archive; None where that is useless, impossible, or a burden."""
    nice, file, conf = shutil.which("nice"), archive_file(), conf_folder()
    if nice is None or file is None or is_whole(file):
        return None
    if _failed_lately(file) or not all(map(is_abandoned, file.parent.glob(UNFINISHED))):
        return None
    if conf.is_dir() and any(conf.iterdir()):  # a JVM with such a class path writes none
        return None
    there = next(folder for folder in file.parents if folder.exists())
    if not os.access(there, os.W_OK) or free_bytes() < _FREE_BYTES:
        return None
    return nice, "-n", "19", sys.executable, "-m", "starrocks_txn_sink", "class-archive"


def write(job: str, listener: Listener, words: Sequence[str] | None) -> None:
    """Run the command, and say so. After a failure it is not tried again for a week, with this Spark and this Java."""
    file = archive_file()
    if words is None or file is None:
        return
    listener(Event("archive.started", {"job": job, "file": str(file)}))
    clock = SystemClock()
    began = clock.monotonic()
    code = _Child().run(words)
    if code > 0:  # not if a signal has ended it
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            _failed(file).touch()
    listener(Event("archive.ended", {"job": job, "code": code, "seconds": clock.monotonic() - began}))


def free_bytes() -> int:
    """Memory that this machine, and this container, have left; no limit where it is not known."""
    free = [sys.maxsize]
    with suppress(OSError, ValueError, IndexError):
        free.append(int(_MEMORY.read_text("ascii").split("MemAvailable:")[1].split()[0]) * 1024)
    for most, used in _LIMITS:
        with suppress(OSError, ValueError):
            free.append(int(Path(most).read_text("ascii")) - int(Path(used).read_text("ascii")))
    return min(free)


def _failed(file: Path) -> Path:
    return file.with_suffix(".failed")


def _failed_lately(file: Path) -> bool:
    return _failed(file).exists() and _age(_failed(file)) < _AGAIN_SECONDS


def is_abandoned(unfinished: Path) -> bool:
    """Whether nobody writes in this folder any more: a killed run has left it."""
    return _age(unfinished) > _ABANDONED_SECONDS


def _age(path: Path) -> float:
    """Seconds since the path was last changed; none where it is not there."""
    with suppress(OSError):
        return SystemClock().wall() - path.stat().st_mtime
    return 0.0


class _Child:
    """A process that ends with this one, and takes along all that it has started."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._over = False

    def run(self, words: Sequence[str]) -> int:
        """Its exit code; negative after a signal, and if this process ends before it can begin."""
        atexit.register(self._end)
        with self._guard:
            if self._over:
                return -signal.SIGTERM
            nothing = subprocess.DEVNULL
            process = self._process = subprocess.Popen(words, stdin=nothing, stdout=nothing, stderr=nothing, **_GROUP)
        code = process.wait()
        atexit.unregister(self._end)
        return code

    def _end(self) -> None:
        with self._guard, suppress(OSError):  # the folder is removed by a later run of the command
            self._over = True
            if self._process is not None:
                os.killpg(self._process.pid, signal.SIGTERM)


def _in_background(seconds: float, work: Callable[[], None]) -> None:
    def wait() -> None:
        SystemClock().sleep(seconds)
        work()

    threading.Thread(target=wait, name="starrocks-class-archive", daemon=True).start()
