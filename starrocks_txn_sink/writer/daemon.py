"""Spark's Python daemon with the lanes' modules loaded, for `spark.python.daemon.module`: workers fork from it.

A worker of Spark's own daemon imports them by itself, a second of processor time each, and compiles pyspark from
`pyspark.zip` where that comes first on its path. A fork has no threads, so nothing here may start one in Python; the
native ones of NumPy and Arrow take care of a fork by themselves.

A worker shares the daemon's pages until it writes to them. A collection writes to every object that it visits, so the
loaded modules are taken out of collections before the first fork.

Where Spark ends a task early, its worker cannot write any more, and the daemon prints the traceback of that. Nothing is
wrong then, so this daemon prints none.
"""

import contextlib
import gc
import importlib
import importlib.machinery
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

_ZIP: Final = Path("python", "lib", "pyspark.zip")  # below SPARK_HOME, which pip's installation is as well


def prefer_installed_pyspark() -> None:
    """Take `pyspark.zip` off the path where pip installed the same pyspark: its modules are compiled there."""
    entries = [entry for entry in sys.path if not entry.endswith(str(_ZIP))]
    spec = importlib.machinery.PathFinder.find_spec("pyspark", entries)
    if spec is None or spec.origin is None:
        return
    same = Path(spec.origin).parent.resolve() / _ZIP  # Spark resolves links, Python's path does not
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != same]


def preload() -> None:
    """Import what a lane needs, with the Kafka client where it is installed."""
    gc.disable()  # a collection leaves holes for later objects, beside which nothing stays shared
    import pyspark.worker  # noqa: F401  (from the place that was just chosen)

    import starrocks_txn_sink.writer.assembling

    for name in ("numpy.ma", "pyarrow.acero"):  # which NumPy and Arrow load when they need them
        importlib.import_module(name)
    with contextlib.suppress(ImportError):  # confluent-kafka is an extra
        import starrocks_txn_sink.sources.kafka.ranges  # noqa: F401
    gc.freeze()
    gc.enable()


def print_unless_gone(*values: object, **options: Any) -> None:
    """`print`, but for an error about a reader that has gone: the JVM has closed the task's socket."""
    if not isinstance(sys.exc_info()[1], BrokenPipeError | ConnectionResetError):
        print(*values, **options)  # noqa: T201  (Spark's own line)


def quiet() -> Callable[[], None]:
    """Spark's daemon without those lines; returns its main function."""
    from pyspark import daemon

    daemon.print = print_unless_gone  # type: ignore[attr-defined]  # its functions look there first
    return daemon.manager


if __name__ == "__main__":
    prefer_installed_pyspark()
    preload()
    quiet()()
