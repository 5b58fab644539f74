"""The folder of a query's checkpoint, for files of the sink next to Spark's own.

A local checkpoint is a folder for Python on driver and executors alike (`FileDirectory`). Any other one is reached as
Spark reaches it: by Hadoop's FileSystem in the driver's JVM, with Hadoop's configuration (`HadoopDirectory`). Python on
the executors has neither, so the driver brings the lanes what they need of it (`sink.events_writer`).
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import DataFrame

from starrocks_txn_sink.assembler.rules.spill import FileDirectory, StateDirectory, StateNotRead, StateNotWritten
from starrocks_txn_sink.errors import StarRocksSinkError
from starrocks_txn_sink.telemetry import get_logger

FOLDER: Final = "starrocks_txn_sink"

_log = get_logger("assembler")


@dataclass(slots=True)
class HadoopDirectory:
    """The directory at `uri` on any file system that Hadoop in the driver's JVM can use; see `StateDirectory`.

    Errors are StateNotRead and StateNotWritten with the JVM's reason.
    """

    uri: str
    jvm: Any
    configuration: Any  # org.apache.hadoop.conf.Configuration

    def write(self, name: str, content: bytes | pa.Buffer) -> None:
        """Write the whole file, replacing an older one. Raises StateNotWritten."""
        path = self._path(name)
        parent = path.getParent()
        hidden = self.jvm.org.apache.hadoop.fs.Path(parent, f".{secrets.token_hex(8)}.tmp")
        with _typed(StateNotWritten, "write"):
            system = path.getFileSystem(self.configuration)
            try:
                stream = system.create(hidden, True)
                try:
                    stream.write(bytes(content))
                finally:
                    stream.close()
                if not system.rename(hidden, path):
                    system.delete(path, False)
                    if not system.rename(hidden, path):
                        raise StateNotWritten(f"The assembling lanes cannot write their state: no rename to {path}.")
            except BaseException:
                with contextlib.suppress(Py4JError):  # or a full file system would stay full
                    system.delete(hidden, False)
                raise

    def open(self, name: str) -> pa.NativeFile:
        """The file's content; raises FileNotFoundError and StateNotRead."""
        path = self._path(name)
        with _typed(StateNotRead, "read"):
            stream = path.getFileSystem(self.configuration).open(path)
            try:
                return pa.BufferReader(bytes(self.jvm.org.apache.commons.io.IOUtils.toByteArray(stream)))
            finally:
                stream.close()

    def names(self, folder: str) -> list[str]:
        """Names of the complete files in `folder`, without the folder, in no order. Raises StateNotRead."""
        path = self._path(folder)
        try:
            with _typed(StateNotRead, "read"):
                found = path.getFileSystem(self.configuration).listStatus(path)
                files = [each.getPath().getName() for each in found if each.isFile()]
        except FileNotFoundError:
            return []
        return [name for name in files if not name.startswith(".")]

    def delete(self, name: str) -> None:
        """Delete the file, if it is there. Raises StateNotWritten."""
        path = self._path(name)
        with _typed(StateNotWritten, "delete"):
            path.getFileSystem(self.configuration).delete(path, False)

    def _path(self, name: str) -> Any:
        return self.jvm.org.apache.hadoop.fs.Path(f"{self.uri}/{name}")


@contextlib.contextmanager
def _typed(kind: type[StarRocksSinkError], verb: str) -> Iterator[None]:
    """Errors of the JVM as errors of `kind` with their reason, a missing file as FileNotFoundError."""
    try:
        yield
    except Py4JJavaError as error:
        reason = str(error.java_exception.toString())
        if reason.startswith("java.io.FileNotFoundException"):
            raise FileNotFoundError(reason) from error
        raise kind(f"The assembling lanes cannot {verb} their state: {reason}.") from error
    except Py4JError as error:
        raise kind(f"The assembling lanes cannot {verb} their state: {error}.") from error


def query_directory(frame: DataFrame, state_dir: str | None, query: str) -> StateDirectory | None:
    """The sink's directory of the running query `query`: next to Spark's logs, or in the `state_dir`.

    None when this process cannot see the checkpoint.
    """
    if state_dir is not None:
        return FileDirectory(f"{state_dir.rstrip('/')}/{quote(query, safe='')}")
    root = checkpoint_root(frame, query)
    if root is None:
        return None
    uri = f"{root.rstrip('/')}/{FOLDER}"
    scheme, colon, _ = uri.partition(":")
    if not colon or "/" in scheme or scheme == "file":
        return FileDirectory(uri)
    session: Any = frame.sparkSession
    return HadoopDirectory(uri, session._jvm, session._jsparkSession.sessionState().newHadoopConf())


def checkpoint_root(frame: DataFrame, query: str) -> str | None:
    """The checkpoint location of the running query `query`; None when this process cannot see it."""
    session: Any = getattr(frame.sparkSession, "_jsparkSession", None)
    context: Any = getattr(frame.sparkSession, "_sc", None)
    if session is None or context is None:
        return None
    try:
        number = context._jvm.java.util.UUID.fromString(query)
        running = session.sharedState().activeStreamingQueries().get(number)
        return None if running is None else str(running.resolvedCheckpointRoot())
    except Exception:  # py4j's errors differ between versions of Spark; the caller asks for a state_dir
        _log.debug("checkpoint.not_found", exc_info=True)
        return None
