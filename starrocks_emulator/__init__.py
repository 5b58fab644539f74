"""An emulator of StarRocks, for tests of any client: frontends, backends and a query port over a DuckDB store.

It serves transactions over several tables (the HTTP transaction interface with `transaction_type: multi`), answers SQL
over the MySQL protocol, and goes wrong on request. It is not StarRocks.
"""

from __future__ import annotations

from starrocks_emulator.process import EmulatorProcess, EmulatorProcessFailed
from starrocks_emulator.server import Emulator
from starrocks_emulator.settings import EmulatorError, Generation, Limits, RowOrder, SettingError, Settings

__all__ = [
    "Emulator",
    "EmulatorError",
    "EmulatorProcess",
    "EmulatorProcessFailed",
    "Generation",
    "Limits",
    "RowOrder",
    "SettingError",
    "Settings",
]
