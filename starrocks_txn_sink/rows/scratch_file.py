"""Files without a name for bytes that do not fit into memory; a file is gone with its last bytes, or with the process.

The bytes are read through a mapping. Pages that were read count as the process's memory until `release` hands them
back to the kernel.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import IO


class ScratchFile:
    """Takes buffers out of memory, one behind the other."""

    def __init__(self, file_bytes: int = 1 << 30) -> None:
        self._file_bytes = file_bytes  # of a file; more where the buffers of one `take` have more
        self._mappings: tuple[weakref.ref[mmap.mmap], ...] = ()  # replaced as a whole: threads release
        self._content = memoryview(b"")
        self._used = 0
        self._file: IO[bytes] | None = None

    def take(self, buffers: Sequence[memoryview | bytes]) -> list[memoryview]:
        """The same bytes in a file; OSError if the disk does not take them, and then none of them count."""
        sizes = [len(buffer) for buffer in buffers]
        if self._file is None or self._used + sum(sizes) > len(self._content):
            self._open(max(sum(sizes), self._file_bytes))
        assert self._file is not None
        self._file.seek(self._used)  # a full disk may have taken a part of earlier buffers
        self._file.writelines(buffers)
        self._file.flush()
        return [self._next(size) for size in sizes]

    def release(self) -> None:
        """Hand the pages that were read back to the kernel: they are read again when they are needed."""
        for mapping in filter(None, (reference() for reference in self._mappings)):
            mapping.madvise(mmap.MADV_DONTNEED)

    def _next(self, size: int) -> memoryview:
        self._used += size
        return self._content[self._used - size : self._used]

    def _open(self, size: int) -> None:
        """Open a sparse file and map it; files are large, because each mapping keeps a file descriptor open."""
        folder = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]  # Spark's own disks for temporary files
        file = tempfile.TemporaryFile(dir=folder if Path(folder or "?").is_dir() else None)  # noqa: SIM115
        weakref.finalize(self, file.close)
        file.truncate(size)
        mapping = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        self._mappings = (*(reference for reference in self._mappings if reference() is not None), weakref.ref(mapping))
        self._file, self._content, self._used = file, memoryview(mapping), 0  # all or none: a file and its mapping
