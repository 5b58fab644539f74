"""State through Hadoop's FileSystem: a name is a whole file or none, whenever the driver dies."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from starrocks_txn_sink.sink.checkpoint import HadoopDirectory

ROOT = "hdfs://name/checkpoint"


class Killed(BaseException):
    """The end of the driver: nothing of its process runs any more."""


class FileSystem:
    """A Hadoop file system in memory. It shows a file from its creation on, as HDFS does, and renames onto none."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.kills = False
        self.watch: Callable[[], object] = lambda: None  # is called between two parts of a file

    def create(self, path: Any, _: bool) -> Any:
        name = str(path)
        self.files[name] = b""
        self.watch()

        def write(content: bytes) -> None:
            self.files[name] += content[: len(content) // 2]
            self.watch()
            if self.kills:
                raise Killed
            self.files[name] += content[len(content) // 2 :]

        return SimpleNamespace(write=write, close=self.watch)

    def rename(self, source: Any, target: Any) -> bool:
        if str(target) in self.files:
            return False
        self.files[str(target)] = self.files.pop(str(source))
        return True

    def delete(self, path: Any, _: bool) -> bool:
        if self.kills:
            raise Killed
        return self.files.pop(str(path), None) is not None

    def open(self, path: Any) -> Any:
        return SimpleNamespace(content=self.files[str(path)], close=lambda: None)

    def listStatus(self, folder: Any) -> list[Any]:  # noqa: N802
        inside = [name.removeprefix(f"{folder}/") for name in self.files if name.startswith(f"{folder}/")]
        return [
            SimpleNamespace(isFile=lambda: True, getPath=lambda name=name: SimpleNamespace(getName=lambda: name))
            for name in inside
        ]


def directory_on(system: FileSystem) -> HadoopDirectory:
    class Path:
        def __init__(self, *parts: object) -> None:
            self._text = "/".join(map(str, parts))

        def __str__(self) -> str:
            return self._text

        def getParent(self) -> Path:  # noqa: N802
            return Path(self._text.rpartition("/")[0])

        def getFileSystem(self, _: object) -> FileSystem:  # noqa: N802
            return system

    hadoop = SimpleNamespace(fs=SimpleNamespace(Path=Path))
    read = SimpleNamespace(toByteArray=lambda stream: stream.content)
    apache = SimpleNamespace(hadoop=hadoop, commons=SimpleNamespace(io=SimpleNamespace(IOUtils=read)))
    return HadoopDirectory(ROOT, SimpleNamespace(org=SimpleNamespace(apache=apache)), None)


def contents(directory: HadoopDirectory) -> dict[str, bytes]:
    """What a reader finds, such as the next driver."""
    return {name: directory.open(f"batches/{name}").read() for name in directory.names("batches")}


def test_a_file_appears_when_it_is_complete() -> None:
    system, looks = FileSystem(), list[dict[str, bytes]]()
    directory = directory_on(system)
    directory.write("batches/1", b"first")
    system.watch = lambda: looks.append(contents(directory))
    directory.write("batches/2", b"second")
    assert looks == [{"1": b"first"}] * len(looks)
    directory.write("batches/1", b"another")
    assert {frozenset(files.items()) for files in looks[-3:]} == {frozenset({("1", b"first"), ("2", b"second")})}
    assert contents(directory) == {"1": b"another", "2": b"second"}


def test_a_driver_that_dies_in_the_middle_leaves_what_was_there() -> None:
    system = FileSystem()
    directory = directory_on(system)
    directory.write("batches/1", b"first")
    system.kills = True
    for name in ("1", "2"):
        with pytest.raises(Killed):
            directory.write(f"batches/{name}", b"half of it")
    assert contents(directory) == {"1": b"first"}
