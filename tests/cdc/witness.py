"""The concurrent reader: looks at the tables again and again, each time with one statement."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

import pymysql
from typing_extensions import Self

from tests.cdc.shop import LOOK, STOCK

Ask = Callable[[str], list[tuple[Any, ...]]]


class Witness:
    """Looks from the first moment at which all stock is there; `torn` keeps the looks that showed part of something."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.looks = 0
        self.items = 0
        self.torn: list[tuple[Any, ...]] = []

    def _run(self) -> None:
        while not self._over.wait(0.1):
            with suppress(pymysql.MySQLError, OSError):
                self._look(self._ask(LOOK)[0])

    def _look(self, row: tuple[Any, ...]) -> None:
        stock, items, orders_total, items_total = row
        if not self.looks and stock != STOCK:
            return  # the snapshot is still coming
        self.looks += 1
        self.items = int(items)
        if stock != STOCK or (orders_total or 0) != (items_total or 0):
            self.torn.append(row)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(30)


def wait_or_time_out(true: Callable[[], bool], seconds: float, condition: str) -> None:
    """Wait until `true()`; TimeoutError naming `condition`."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise TimeoutError(f"Waited {seconds:.0f} s for {condition}, which did not come.")
        time.sleep(0.5)
