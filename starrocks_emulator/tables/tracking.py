"""Logs of filtered rows: bounded texts under ids, as a backend keeps them for `tracking_url`."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

_MOST_LOGS = 1000


@dataclass(frozen=True, slots=True)
class TrackingLog:
    """Why rows of one table in one transaction were filtered."""

    id: str
    label: str
    database: str
    table: str
    reasons: Sequence[str]

    @property
    def text(self) -> str:
        return "\n".join(f"Error: {reason}" for reason in self.reasons) + "\n"


class TrackingLogs:
    """The newest thousand logs; they live as long as the process."""

    def __init__(self) -> None:
        self._logs: OrderedDict[str, TrackingLog] = OrderedDict()
        self._guard = threading.Lock()

    def add(self, log: TrackingLog) -> None:
        with self._guard:
            self._logs[log.id] = log
            while len(self._logs) > _MOST_LOGS:
                self._logs.popitem(last=False)

    def text(self, log_id: str) -> str:
        """The log's lines; empty when it is unknown or gone."""
        with self._guard:
            log = self._logs.get(log_id)
        return log.text if log else ""

    def all(self) -> Sequence[TrackingLog]:
        with self._guard:
            return list(self._logs.values())
