"""The DuckDB database under the store: one file, one writer at a time, any number of snapshot readers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import duckdb

from starrocks_emulator.settings import SettingError
from starrocks_emulator.tables.catalog import literal

_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": "false",
    "wal_autocheckpoint": "64MB",
}


ASIDE: Final = "aside"
"""The database in memory for rows that are not committed yet; all cursors see its tables."""


class WaitedTooLong(Exception):
    """A condition under the writer's lock did not come true within its time."""


class Engine:
    """Opens `folder/store.duckdb`, and reads bodies of loads in `spool`. Raises SettingError where that cannot be.

    Cursors are independent sessions; each read statement sees one snapshot.

    `writing` is the one lock of all writers and a condition: DuckDB itself would answer two writers with conflicts.
    """

    def __init__(self, folder: Path, spool: Path, memory_limit: str) -> None:
        file = folder / "store.duckdb"
        config = {**_SETTINGS, "memory_limit": memory_limit, "temp_directory": str(folder / "spill")}
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._root = duckdb.connect(str(file), config=config)
        except (OSError, duckdb.Error) as error:
            advice = "Name another folder, or end the emulator that has this one open."
            raise SettingError(f"The data folder {folder} cannot be used: {error}. {advice}") from None
        file.chmod(0o600)
        self._root.execute("SET GLOBAL TimeZone = 'UTC'")
        self._root.execute(f"ATTACH ':memory:' AS {ASIDE}")
        # Statements of clients run here too: they may read the bodies of loads, and no other file of this machine.
        self._root.execute(f"SET allowed_directories = [{literal(str(spool))}]")
        self._root.execute("SET enable_external_access = false")
        self._root.execute("SET lock_configuration = true")
        self._opening = threading.Lock()
        self.writing = threading.Condition(threading.RLock())

    @contextmanager
    def cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A session of its own, closed at the end, its temporary tables with it."""
        with self._opening:
            cursor = self._root.cursor()
        try:
            yield cursor
        finally:
            cursor.close()

    @contextmanager
    def transaction(self, cursor: duckdb.DuckDBPyConnection) -> Iterator[None]:
        """One DuckDB transaction on `cursor`: durable at the end, rolled back on any exception. Needs `writing`."""
        cursor.execute("BEGIN")
        try:
            yield
            cursor.execute("COMMIT")
        except BaseException:
            with suppress(duckdb.Error):
                cursor.execute("ROLLBACK")
            raise

    def wait_until(self, true: Callable[[], bool], seconds: float) -> None:
        """Give the writer's lock up until `true()`; raises WaitedTooLong. Needs `writing`."""
        if not self.writing.wait_for(true, seconds):
            raise WaitedTooLong

    def close(self) -> None:
        """Close the file once writers are done; cursors fail from then on."""
        with self.writing, self._opening:
            self._root.close()
