"""The folder of a query's checkpoint, for files of the sink next to Spark's own.

If the checkpoint is local, Python on driver and executors uses it as a folder (`FileDirectory`). Otherwise the driver
uses it as Spark does, through Hadoop's FileSystem in its JVM (`HadoopDirectory`). Executors have no JVM for Python, so
the driver sends the lanes the files that they need (`sink.manifest_log`).

**Proofs.** After each micro-batch that has news, the driver writes the session's knowledge into a file:

    visible/{batch}-{epoch}.json    kept for the newest micro-batches

A proof is a lower bound, so a missing or an older file is no error. Therefore a thread writes the files, and no commit
waits for it. The next run of the query compares the ledger with the proofs, and reads from them which replayed rows it
skips (`rows.segments`).
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final
from urllib.parse import quote

import orjson
import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession

from starrocks_txn_sink import typed_json
from starrocks_txn_sink.assembler.rules.directory import FileDirectory, StateDirectory
from starrocks_txn_sink.coordinator.model import Receipt
from starrocks_txn_sink.errors import StarRocksSinkError, StateNotRead, StateNotWritten
from starrocks_txn_sink.rows.segments import Skip
from starrocks_txn_sink.sink.spark_jobs import context_of
from starrocks_txn_sink.sink.termination import run_with_timeout, start_thread
from starrocks_txn_sink.spark_version import query_of_batch
from starrocks_txn_sink.telemetry import get_logger
from starrocks_txn_sink.writer.messages import LaneReport

FOLDER: Final = "starrocks_txn_sink"
VISIBLE: Final = "visible"
_KEPT: Final = 2  # Spark may repeat the micro-batch of the newest proof, which then needs the one before

_log = get_logger("assembler")
_log_proofs = get_logger("continuity")


@dataclass(slots=True)
class HadoopDirectory:
    """The directory at `uri` on any file system that Hadoop in the driver's JVM can use; see `StateDirectory`.

    Errors are StateNotRead and StateNotWritten with the JVM's reason.
    """

    driver_only: ClassVar[bool] = True
    uri: str
    jvm: Any
    configuration: Any  # org.apache.hadoop.conf.Configuration

    def write(self, name: str, content: bytes | pa.Buffer) -> None:
        """Write the whole file, replacing an older one. Raises StateNotWritten."""
        path = self._path(name)
        parent = path.getParent()
        partial_path = self.jvm.org.apache.hadoop.fs.Path(parent, f".{secrets.token_hex(8)}.tmp")
        with _raising(StateNotWritten, "write"):
            system = self._system(path)
            try:
                with contextlib.closing(system.create(partial_path, True)) as stream:
                    stream.write(bytes(content))
                if not system.rename(partial_path, path):
                    system.delete(path, False)
                    if not system.rename(partial_path, path):
                        raise StateNotWritten(f"The assembling lanes cannot write their state: no rename to {path}.")
            except BaseException:
                with contextlib.suppress(Py4JError):  # half a file would keep a full file system full
                    system.delete(partial_path, False)
                raise

    def open(self, name: str) -> pa.NativeFile:
        """The file's content; raises FileNotFoundError and StateNotRead."""
        path = self._path(name)
        with _raising(StateNotRead, "read"), contextlib.closing(self._system(path).open(path)) as stream:
            return pa.BufferReader(bytes(self.jvm.org.apache.commons.io.IOUtils.toByteArray(stream)))

    def names(self, folder: str) -> list[str]:
        """Names of the complete files in `folder`, without the folder, in no order. Raises StateNotRead."""
        path = self._path(folder)
        try:
            with _raising(StateNotRead, "read"):
                statuses = self._system(path).listStatus(path)
                files = [status.getPath().getName() for status in statuses if status.isFile()]
        except FileNotFoundError:
            return []
        return [name for name in files if not name.startswith(".")]

    def delete(self, name: str) -> None:
        """Delete the file, if it is there. Raises StateNotWritten."""
        path = self._path(name)
        with _raising(StateNotWritten, "delete"):
            self._system(path).delete(path, False)

    def _system(self, path: Any) -> Any:
        return path.getFileSystem(self.configuration)

    def _path(self, name: str) -> Any:
        return self.jvm.org.apache.hadoop.fs.Path(f"{self.uri}/{name}")


@contextlib.contextmanager
def _raising(kind: type[StarRocksSinkError], verb: str) -> Iterator[None]:
    """Raise errors of the JVM as errors of `kind` with the JVM's reason, and a missing file as FileNotFoundError."""
    try:
        yield
    except Py4JJavaError as error:
        reason = str(error.java_exception.toString())
        if reason.startswith("java.io.FileNotFoundException"):
            raise FileNotFoundError(reason) from error
        raise kind(f"The assembling lanes cannot {verb} their state: {reason}.") from error
    except Py4JError as error:
        raise kind(f"The assembling lanes cannot {verb} their state: {error}.") from error


def query_directory(spark: SparkSession | None, state_dir: str | None, query: str) -> StateDirectory | None:
    """The sink's directory of the running query `query`: next to Spark's logs, or in the `state_dir`.

    None when this process cannot see the checkpoint.
    """
    if state_dir is not None:
        return FileDirectory(f"{state_dir.rstrip('/')}/{quote(query, safe='')}")
    root = checkpoint_root(spark, query)
    if root is None:
        return None
    uri = f"{root.rstrip('/')}/{FOLDER}"
    scheme, colon, _ = uri.partition(":")
    if not colon or "/" in scheme or scheme == "file":
        return FileDirectory(uri)
    session: Any = spark
    return HadoopDirectory(uri, session._jvm, session._jsparkSession.sessionState().newHadoopConf())


def checkpoint_root(spark: SparkSession | None, query: str) -> str | None:
    """The checkpoint location of the running query `query`; None when this process cannot see it."""
    if context_of(spark) is None:
        return None
    try:
        running = query_of_batch(spark, query)
        return None if running is None else str(running.resolvedCheckpointRoot())
    except Exception:  # py4j's errors differ between versions of Spark; callers handle None
        _log.debug("checkpoint.not_found", exc_info=True)
        return None


@dataclass(frozen=True, slots=True)
class Proof:
    """The `positions` of `job` by source partition that were visible after micro-batch `batch`.

    `accepted` are the tokens of `recover --accept-ledger` that the driver knew then.
    """

    job: str
    batch: int
    positions: Mapping[str, int]
    skips: Mapping[str, Skip] = field(default_factory=dict)
    accepted: Sequence[str] = ()

    def with_batch(self, batch: int, receipts: Sequence[Receipt], reports: Sequence[LaneReport]) -> Proof:
        """The proof after `batch`, whose lanes have sent `receipts` and `reports`."""
        visible = {span.partition: span.last for receipt in receipts for span in receipt.positions}
        skips = {name: skip for report in reports for name, skip in report.work.skips.items()}
        return replace(self, batch=batch, positions={**self.positions, **visible}, skips={**self.skips, **skips})

    def to_json(self) -> bytes:
        """The proof as UTF-8 JSON, the content of its file."""
        return typed_json.dumps(self)

    @classmethod
    def from_json(cls, content: bytes) -> Proof:
        """The proof in `content`; raises ValueError or TypeError for any other file."""
        return typed_json.read(cls, orjson.loads(content))


@dataclass(slots=True)
class ProofLog:
    """One run's view of the proofs in the query's directory.

    Never raises: without proofs, as on a file system that only Spark can reach, the ledger counts as it is.
    """

    directory: StateDirectory
    epoch: str = ""
    _next: Proof | None = None
    _writing: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def read(self, seconds: float = 10.0) -> list[Proof]:
        """The proofs of all runs, the newest last; none if the reading takes longer than `seconds`."""
        all_proofs: list[Proof] = []
        run_with_timeout([lambda: all_proofs.extend(self._read())], seconds)
        return list(all_proofs)

    def _read(self) -> list[Proof]:
        proofs_read = []
        with _log_failure("proof.not_read"):
            for name in sorted(self.directory.names(VISIBLE)):
                with _log_failure("proof.not_read"), self.directory.open(f"{VISIBLE}/{name}") as file:
                    proofs_read.append(Proof.from_json(file.read()))
        return proofs_read

    def record(self, proof: Proof) -> None:
        """Write `proof` in a thread, soon. It replaces an older proof that still waits for the thread."""
        with self._lock:
            self._next, idle = proof, not self._writing
            if idle:
                self._writing = start_thread(self._write_waiting) is not None

    def _write_waiting(self) -> None:
        while (proof := self._take()) is not None:
            self.write(proof)

    def _take(self) -> Proof | None:
        with self._lock:
            proof, self._next = self._next, None
            self._writing = proof is not None
            return proof

    def write(self, proof: Proof) -> None:
        """Write `proof`, and delete all files but the newest.

        A higher number of an older run is no newer: the query has gone back, or that run was ahead, and then the proof
        has its positions too. A younger run's proof stays: this run was paused.
        """
        name = f"{proof.batch:012d}-{self.epoch}.json"
        with _log_failure("proof.not_written"):
            self.directory.write(f"{VISIBLE}/{name}", proof.to_json())
            names = sorted(self.directory.names(VISIBLE))
            older = [other_name for other_name in names if other_name < name]
            later = [
                other_name
                for other_name in names
                if other_name > name and other_name.partition("-")[2] < f"{self.epoch}.json"
            ]
            for file_name in [*older[: 1 - _KEPT], *later]:
                self.directory.delete(f"{VISIBLE}/{file_name}")


@contextlib.contextmanager
def _log_failure(event: str) -> Iterator[None]:
    try:
        yield
    except Exception:
        _log_proofs.debug(event, exc_info=True)
