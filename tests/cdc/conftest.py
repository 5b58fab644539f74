"""The server that the tests write: an emulator, or the StarRocks of `make test SERVER=…`."""

from __future__ import annotations

from tests.kafka.conftest import starrocks, warehouse

__all__ = ["starrocks", "warehouse"]
