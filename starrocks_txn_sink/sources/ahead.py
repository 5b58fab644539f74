"""Parallel map in a few threads with results in input order, for work that releases the interpreter's lock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

In = TypeVar("In")
Out = TypeVar("Out")


def map_ahead(work: Callable[[In], Out], items: Iterable[In], threads: int) -> Iterator[Out]:
    """Yield `work(item)` for each item, in order; an error of `work` is raised in its item's turn.

    At most `threads` + 1 items are under way, which bounds memory.
    """
    with ThreadPoolExecutor(threads, thread_name_prefix="starrocks-parse") as pool:
        futures: deque[Future[Out]] = deque()
        for item in items:
            futures.append(pool.submit(work, item))
            if len(futures) > threads:
                yield futures.popleft().result()
        while futures:
            yield futures.popleft().result()
