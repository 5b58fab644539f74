"""How long the frontend remembers: finished tasks, finished transactions, idle ones past their deadline (section 3.3).

Pure decisions over the frontend's maps; the frontend carries them out.
"""

from __future__ import annotations

from collections.abc import Mapping

from starrocks_emulator.settings import Generation, Limits
from starrocks_emulator.transactions.labels import Task


def tasks_too_old(tasks: Mapping[str, Task], now: float, limits: Limits) -> list[str]:
    """Labels of final tasks beyond `stream_load_task_keep_max_second`."""
    oldest = now - limits.stream_load_task_keep_max_second
    return [
        label for label, task in tasks.items() if task.ended_at is not None and task.final and task.ended_at < oldest
    ]


def tasks_too_many(tasks: Mapping[str, Task], limits: Limits) -> list[str]:
    """All final tasks' labels when there are more tasks than allowed: the forced purge; else none."""
    if len(tasks) <= limits.stream_load_task_keep_max_num:
        return []
    return [label for label, task in tasks.items() if task.final]


def timed_out(tasks: Mapping[str, Task], now: float) -> list[Task]:
    return [task for task in tasks.values() if task.expired(now)]


def timeout_check_interval(generation: Generation, limits: Limits) -> float:
    """Seconds between the sweeps that cancel idle tasks past their deadline (section 4.12): hours in B, 30 s in C."""
    if generation is Generation.B:
        return limits.label_clean_interval_second
    return limits.transaction_clean_interval_second
