"""Work done ahead in a few threads, results in order: for work that lets go of the interpreter's lock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

In = TypeVar("In")
Out = TypeVar("Out")


def ahead(work: Callable[[In], Out], items: Iterable[In], threads: int) -> Iterator[Out]:
    """Yield `work(item)` for each item, in order; at most `threads` + 1 are under way. Errors come in their place."""
    with ThreadPoolExecutor(threads, thread_name_prefix="starrocks-parse") as crew:
        waiting: deque[Future[Out]] = deque()
        for item in items:
            waiting.append(crew.submit(work, item))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
