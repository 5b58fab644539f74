"""The assembling lanes' state directory in memory, for tests and for the simulator."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa


@dataclass(slots=True)
class MemoryDirectory:
    """`files` by name; keeps the promises of `StateDirectory`. `written` counts all bytes ever written."""

    driver_only: ClassVar[bool] = False
    files: dict[str, bytes] = field(default_factory=dict)
    written: int = 0

    def write(self, name: str, content: bytes | pa.Buffer) -> None:
        self.files[name] = bytes(content)
        self.written += len(self.files[name])

    def open(self, name: str) -> pa.NativeFile:
        if name not in self.files:
            raise FileNotFoundError(name)
        return pa.BufferReader(self.files[name])

    def names(self, folder: str) -> list[str]:
        return [name.rpartition("/")[2] for name in self.files if name.rpartition("/")[0] == folder]

    def delete(self, name: str) -> None:
        self.files.pop(name, None)
