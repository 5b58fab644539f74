"""Spill storage of assembling lanes: files for the rows of open source transactions, and the state that names them.

The next micro-batch needs the AssemblerState of each source partition, and the place of each blob: a file in the state
directory and the number of a record batch in the file. A Manifest (JSON) has both for all source partitions. Rows stay
in their files, so each row is written once, however long its transaction stays open. Only small files are inside the
manifest (`inline`), which saves a file per lane and micro-batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, TypeVar, cast

import orjson
import pyarrow as pa

from starrocks_txn_sink import typed_json
from starrocks_txn_sink.assembler.rules.directory import StateDirectory
from starrocks_txn_sink.assembler.rules.model import AssemblerState, Counters, SourceState
from starrocks_txn_sink.assembler.rules.reading_clock import ReadingClock
from starrocks_txn_sink.assembler.verified.intake import VerifiedState
from starrocks_txn_sink.coordinator.model import MissingColumns, missing_of_words, words_of_missing
from starrocks_txn_sink.errors import InputError

FORMAT: Final = 1
INLINE_BYTES: Final = 16 << 10
FOLDER: Final = "rows"
_MOST_OPEN: Final = 64
"""Files at a time: a large source transaction has more than a process may open."""
_RULES: Final = "rules"  # in the manifest's JSON
_KINDS: Final[Mapping[str, type[SourceState]]] = {kind.RULES: kind for kind in (AssemblerState, VerifiedState)}
State = TypeVar("State", bound=SourceState)
Carrier = TypeVar("Carrier")


class BlobPlace(NamedTuple):
    """The place of a blob's rows."""

    file: str
    number: int


@dataclass(frozen=True, slots=True)
class CarriedState:
    """One source partition between two micro-batches; `places` has every blob that `state` names."""

    state: SourceState = field(default_factory=AssemblerState)
    places: Mapping[int, BlobPlace] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The state in JSON's types; `of_json` reads it. A blob is [number, file, place in the file]."""
        rules = {_RULES: self.state.RULES} if self.state.RULES else {}
        blobs = [(number, *place) for number, place in self.places.items()]
        return {"state": self.state.to_json(), "blobs": blobs, **rules}

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> CarriedState:
        """The state that `as_json` wrote; InputError when another format wrote it, KeyError for unknown rules."""
        places = {number: BlobPlace(file, at) for number, file, at in value["blobs"]}
        return cls(_KINDS[value.get(_RULES, "")].from_json(value["state"]), places)

    def state_of(self, kind: type[State], source: str) -> State:
        """The state of `source`, which rules of this `kind` have written; raises InputError for one of other rules."""
        if self.state.RULES != kind.RULES:
            raise other_rules(source)
        return cast("State", self.state)


@dataclass(frozen=True, slots=True)
class Manifest:
    """All carried-over state after micro-batch `batch` (-1: before the first) of the query run `query`.

    The driver publishes a manifest after all lanes have committed, and micro-batch N reads the manifest of N-1. So a
    replay starts from the same state, and the ledger skips rows that are already committed: carried-over state needs no
    commit protocol of its own. `marks` of the source's snapshot wait for the next commit. `described` has the types, by
    the messages' schemas, of columns that tables lack: rows that wait may need them. Times in states are of `clock`.
    `topics` has the ids in Kafka of those that were read.
    """

    batch: int = -1
    query: str = ""
    partitions: Mapping[str, CarriedState] = field(default_factory=dict)
    inline: Mapping[str, bytes] = field(default_factory=dict)
    marks: Mapping[str, str] = field(default_factory=dict)
    described: MissingColumns = field(default_factory=dict)
    clock: ReadingClock = ReadingClock()  # noqa: RUF009 - frozen
    topics: Mapping[str, str] = field(default_factory=dict)

    def is_due(self, open_timeout: float, now: float) -> bool:
        """Whether a source transaction is open for `open_timeout` (seconds) at `now`, a time of `clock`."""
        ends = (partition.state.expires_at(open_timeout) for partition in self.partitions.values())
        return any(end is not None and end <= now for end in ends)

    def files(self) -> set[str]:
        """Names of all files with rows of open source transactions, including inline ones."""
        return {place.file for partition in self.partitions.values() for place in partition.places.values()}

    def levels(self) -> Counters:
        """The levels of all source partitions; no flows."""
        return sum((Counters().with_levels_of(partition.state) for partition in self.partitions.values()), Counters())

    def with_batch(
        self, batch: int, query: str, touched: Mapping[str, CarriedState], inline: Iterable[tuple[str, bytes]]
    ) -> Manifest:
        """The manifest after one more micro-batch; `touched` are the source partitions with events in it."""
        after = Manifest(batch, query, {**self.partitions, **touched})
        files, contents = after.files(), {**self.inline, **dict(inline)}
        return replace(after, inline={name: content for name, content in contents.items() if name in files})

    def to_json(self) -> bytes:
        """The manifest as UTF-8 JSON; the content of inline files is in base64."""
        return typed_json.dumps({"format": FORMAT, **carried_fields(self)})

    @classmethod
    def from_json(cls, text: bytes) -> Manifest:
        """The manifest that `to_json` wrote; InputError when another format wrote it."""
        fields = orjson.loads(text)
        if fields.pop("format", None) != FORMAT:
            raise InputError(
                "The checkpoint's state of the assembling lanes has another format.",
                hint="Finish the query with the release that started it, then start it with a new checkpoint.",
            )
        return of_carried(cls, fields)


def carried_fields(carrier: Any) -> dict[str, Any]:
    """The fields of a Manifest or a CarryOver for `typed_json.dumps`."""
    partitions = {name: partition.as_json() for name, partition in carrier.partitions.items()}
    described = words_of_missing(carrier.described)
    return {**typed_json.fields_of(carrier), "partitions": partitions, "described": described}


def of_carried(kind: type[Carrier], fields: dict[str, Any]) -> Carrier:
    """The `kind` whose `carried_fields` these are, in JSON's types; an earlier release knew fewer."""
    carried = {name: CarriedState.of_json(document) for name, document in fields.pop("partitions").items()}
    described = missing_of_words(fields.pop("described", {}))
    return typed_json.read(kind, fields, partitions=carried, described=described)


def other_rules(source: str) -> InputError:
    """The error for a `source` partition whose state other rules have written."""
    return InputError(
        "The checkpoint's open source transactions were assembled by other rules.",
        hint="Go on with the same assembly and `transactions` as before, or start with a new checkpoint.",
        source_partition=source,
    )


def missing_rows(file: str) -> InputError:
    """The error for a missing `file` of rows that the state names."""
    return InputError(
        "Rows of an open source transaction are missing from the state of the assembling lanes.",
        hint="Restore the checkpoint's folder starrocks_txn_sink from the same copy as the checkpoint, or start with a "
        "new checkpoint from a position before the open source transactions.",
        file=file,
    )


@dataclass(slots=True)
class SpillStorage:
    """Writes the rows of open source transactions for one task, and reads rows that earlier tasks have written.

    Blobs that are written together share one Arrow IPC file, one record batch per blob. File names begin with `stem`,
    which differs between attempts of a task, so two attempts never write the same file. The content of a small file
    goes through `new_inline` into the manifest; `inline` has the small files of earlier tasks. At
    most `most_open` files are open at a time.
    """

    directory: StateDirectory
    stem: str
    inline: Mapping[str, bytes] = field(default_factory=dict)
    new_inline: dict[str, bytes] = field(default_factory=dict)
    most_open: int = _MOST_OPEN
    _files: int = 0
    _opened: dict[str, tuple[pa.NativeFile, pa.ipc.RecordBatchFileReader]] = field(default_factory=dict)
    _narrow: dict[tuple[str, tuple[str, ...]], pa.ipc.RecordBatchFileReader] = field(default_factory=dict)

    def write(self, blobs: Sequence[pa.Table], *, small: bool = False) -> list[BlobPlace]:
        """Write blobs into one file; with `small`, a file up to INLINE_BYTES goes to `new_inline` instead."""
        if not blobs:
            return []
        name = f"{self.stem}-{self._files}.arrow"
        self._files += 1
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, blobs[0].schema) as writer:
            for blob in blobs:
                writer.write_batch(blob.combine_chunks().to_batches()[0])
        content = sink.getvalue()
        if small and content.size <= INLINE_BYTES:
            self.new_inline[name] = content.to_pybytes()
        else:
            self.directory.write(f"{FOLDER}/{name}", content)
        return [BlobPlace(name, number) for number in range(len(blobs))]

    def read(self, place: BlobPlace, columns: tuple[str, ...] = ()) -> pa.Table:
        """The rows at `place`, or those of their `columns` that there are; InputError if the file is missing."""
        opened = self._opened.pop(place.file, None)
        file, whole = self._opened[place.file] = self._open(place.file) if opened is None else opened
        if len(self._opened) > self.most_open:
            self._close(next(iter(self._opened)))  # the one that was read longest ago
        if not columns:
            return pa.Table.from_batches([whole.get_batch(place.number)])
        if (place.file, columns) not in self._narrow:
            fields = [whole.schema.get_field_index(name) for name in columns if name in whole.schema.names]
            options = pa.ipc.IpcReadOptions(included_fields=fields)
            self._narrow[place.file, columns] = pa.ipc.open_file(file, options=options)
        return pa.Table.from_batches([self._narrow[place.file, columns].get_batch(place.number)])

    def contents(self, files: Iterable[str]) -> dict[str, bytes]:
        """The contents of the `files` that the directory has, by name."""
        names_written = set(self.directory.names(FOLDER)).intersection(files)
        contents = {}
        for name in names_written:
            with self.directory.open(f"{FOLDER}/{name}") as file:
                contents[name] = file.read()
        return contents

    def close(self) -> None:
        """Close all opened files."""
        for name in tuple(self._opened):
            self._close(name)

    def _close(self, name: str) -> None:
        for narrow in [narrow for narrow in self._narrow if narrow[0] == name]:
            del self._narrow[narrow]
        with contextlib.suppress(OSError):
            self._opened.pop(name)[0].close()

    def _open(self, name: str) -> tuple[pa.NativeFile, pa.ipc.RecordBatchFileReader]:
        content = self.new_inline.get(name) or self.inline.get(name)
        if content is not None:
            file = pa.BufferReader(content)
        else:
            try:
                file = self.directory.open(f"{FOLDER}/{name}")
            except FileNotFoundError:
                raise missing_rows(name) from None
        return file, pa.ipc.open_file(file)
