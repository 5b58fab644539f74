"""Files of the spill storage: how many are open at a time."""

from __future__ import annotations

import pyarrow as pa

from starrocks_txn_sink.assembler.rules.spill import SpillStorage
from tests.support.memory_directory import MemoryDirectory


def test_a_source_transaction_of_many_files_opens_a_few_at_a_time() -> None:
    storage = SpillStorage(MemoryDirectory(), "s", most_open=3)
    tables = [pa.table({"row": [f"r{number}"], "other": [number]}) for number in range(9)]
    places = [place for table in tables for place in storage.write([table])]
    for _ in range(2):
        for place, table in zip(places, tables, strict=True):
            assert storage.read(place).equals(table)
            assert storage.read(place, ("row",))["row"].equals(table["row"])
            assert len(storage._opened) <= 3
            assert len(storage._narrow) <= 3
    storage.close()
    assert not storage._opened
    assert not storage._narrow
