"""Spark's Python worker between two tasks: it collects its garbage, all of it, before it takes the next one.

A full collection looks at every object of every library the process has loaded, a tenth of a second of processor time
after each task, which small micro-batches notice. What is loaded stays for the life of the process, so the collector is
told once to leave it alone.
"""

from __future__ import annotations

import gc

from pyspark import TaskContext

_spared = False  # not `gc.get_freeze_count()`, which counts them one by one


def spare_loaded() -> None:
    """Keep what this worker has loaded so far out of later collections; once a process, and only in a Spark task.

    To be called before a task's rows arrive: what is alive now and becomes a cycle of garbage later is never collected.
    """
    global _spared
    if _spared or TaskContext.get() is None:
        return
    _spared = True
    gc.collect()
    gc.freeze()
