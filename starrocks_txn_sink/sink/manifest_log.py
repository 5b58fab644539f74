"""The manifest log: the open tails of all source partitions after each micro-batch, next to Spark's log of the query.

    batches/{batch}-{generation}-{epoch}.json   a manifest for each of the last micro-batches
    rows/{generation}-{epoch}-{batch}-…         the rows they name
    owners/{generation}-{epoch}                 one for each run of the query that was ever opened
    overdue/{batch}                             the clock by which a micro-batch has given up source transactions

Micro-batch N reads the manifest of N-1. It publishes its own manifest after all lanes have committed and before
`foreachBatch` returns, so the manifest exists before Spark marks N as done. If the process dies between commit and
manifest, the ledger's positions keep the repeated rows out, so there is no second commit protocol. A run of the query
takes the next *generation* when it opens the log. If two runs publish for one micro-batch (the older run was paused and
woke up), the manifest of the younger run counts.

Two runs may overlap, and either may be ahead: Spark then ends one of them, and the next run goes on where the one ahead
was. So no run deletes files of a younger run, or what a run ahead has published or may still publish: manifests of
later micro-batches, the rows they name, and unnamed rows that an older run has written for the micro-batch before or a
later one. The query overtakes all of these, and a later sweep deletes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import orjson

from starrocks_txn_sink.assembler.rules.directory import StateDirectory
from starrocks_txn_sink.assembler.rules.reading_clock import ReadingClock
from starrocks_txn_sink.assembler.rules.spill import FOLDER as ROWS, Manifest, missing_rows
from starrocks_txn_sink.errors import InputError, OptionError

BATCHES: Final = "batches"
OWNERS: Final = "owners"
OVERDUE: Final = "overdue"
LEAST_KEPT: Final = 2  # a process that dies before Spark marks N as done starts N again, which needs N-1
INLINE_LIMIT: Final = 256 << 10  # bytes: every micro-batch writes the rows in its manifest again
RELAY_LIMIT: Final = 128 << 20  # bytes: the driver keeps the files in memory, and sends them with each micro-batch


class ManifestName(NamedTuple):
    """A parsed manifest file name; the greater of two for one micro-batch counts."""

    batch: int
    generation: int
    epoch: str

    @property
    def file(self) -> str:
        """The name of the file; files sort by name as their manifests do."""
        return f"{self.batch:012d}-{self.generation:06d}-{self.epoch}.json"

    @classmethod
    def of(cls, file: str) -> ManifestName:
        """The parts of a file's name; ValueError for any other name."""
        batch, generation, epoch = file.removesuffix(".json").split("-")
        return cls(int(batch), int(generation), epoch)


@dataclass(slots=True)
class ManifestLog:
    """One run's view of the log. It keeps as many manifests as Spark keeps micro-batches (`keep`), at least two."""

    directory: StateDirectory
    generation: int
    epoch: str
    query: str
    keep: int
    _latest: Manifest | None = None
    _relayed: dict[str, bytes] = field(default_factory=dict)
    _files: dict[ManifestName, frozenset[str]] = field(default_factory=dict)  # kept manifest → files that it names
    _until_sweep: int = 0

    @classmethod
    def open(cls, directory: StateDirectory, epoch: str, query: str, keep: int) -> ManifestLog:
        """Open the log for a new run of the query: it gets the highest generation."""
        owners = directory.names(OWNERS)
        generations = [int(name.split("-")[0]) for name in owners]
        generations += [name.generation for name in _manifests(directory)]
        generation = max(generations, default=0) + 1
        log = cls(directory, generation, epoch, query, max(LEAST_KEPT, keep))
        directory.write(log.marker, query.encode())
        for name in owners:
            if int(name.split("-")[0]) < generation - 1:
                directory.delete(f"{OWNERS}/{name}")
        return log

    @property
    def marker(self) -> str:
        """The file that names the run of the generation."""
        return f"{OWNERS}/{self.generation:06d}-{self.epoch}"

    def stem(self, batch: int) -> str:
        """The prefix of the names of this run's files with rows."""
        return f"{self.generation:06d}-{self.epoch}-{batch}"

    def before(self, batch: int, *, may_begin: bool) -> Manifest:
        """The manifest from which micro-batch `batch` starts: that of the micro-batch before, empty for the first one.

        With `may_begin` a query that has no manifest at all starts with an empty one. Raises InputError otherwise.
        """
        if batch == 0:
            return Manifest()
        if self._latest is not None and self._latest.batch == batch - 1:
            return self._latest
        names = _manifests(self.directory)
        newest = max((name for name in names if name.batch == batch - 1), default=None)
        if newest is not None:
            return self._read(newest)
        if names or not may_begin:
            raise _missing_state(batch, names)
        return Manifest(batch - 1, self.query)

    def clock_of_overdue(self, batch: int) -> ReadingClock | None:
        """The clock by which an earlier try of micro-batch `batch` has given up source transactions."""
        if f"{batch:012d}" not in self.directory.names(OVERDUE):
            return None
        with self.directory.open(f"{OVERDUE}/{batch:012d}") as file:
            return ReadingClock(**orjson.loads(file.read()))

    def keep_clock_of_overdue(self, batch: int, clock: ReadingClock) -> None:
        """Write, before the lanes run, that micro-batch `batch` gives up source transactions by `clock`.

        When it runs again, it gives up the same ones, whatever it knows of the source by then: what is written of them
        is known by its number.
        """
        for name in self.directory.names(OVERDUE):
            if int(name) <= batch - LEAST_KEPT:
                self.directory.delete(f"{OVERDUE}/{name}")
        self.directory.write(f"{OVERDUE}/{batch:012d}", orjson.dumps(clock))

    @property
    def relays(self) -> bool:
        """Whether the driver sends the files of open rows to the lanes, because only it reaches the directory."""
        return self.directory.driver_only

    def relay(self, manifest: Manifest) -> dict[str, bytes]:
        """Every file of open rows that `manifest` names. Only after a restart does this read the directory."""
        contents = {**manifest.inline, **self._relayed}
        for name in manifest.files() - contents.keys():
            try:
                with self.directory.open(f"{ROWS}/{name}") as file:
                    contents[name] = file.read()
            except FileNotFoundError:
                raise missing_rows(name) from None
        self._relayed = {name: contents[name] for name in manifest.files()}
        return self._relayed

    def _keep_relayed(self, manifest: Manifest, contents: Iterable[tuple[str, bytes]]) -> None:
        """Keep the files of `manifest` in memory for the next micro-batch. Raises OptionError above RELAY_LIMIT."""
        all_contents = {**self._relayed, **dict(contents)}
        self._relayed = {name: all_contents[name] for name in manifest.files()}
        size = sum(map(len, self._relayed.values()))
        if size > RELAY_LIMIT:
            raise OptionError(
                f"The open source transactions have {size >> 20} MiB, and the checkpoint is on a file system that only "
                f"the driver reaches: more than {RELAY_LIMIT >> 20} MiB do not go through it. Nothing is lost.",
                hint="Set the state_dir of the assembly to a folder that Python on driver and executors can write, "
                "and copy the content of the checkpoint's folder starrocks_txn_sink into its new folder "
                f'{manifest.query} (docs/guides/deploy.md, "The checkpoint").',
                option="state_dir",
            )

    def publish(self, manifest: Manifest, contents: Iterable[tuple[str, bytes]] = ()) -> None:
        """Publish `manifest` for the next micro-batch; then delete files that no kept manifest names.

        `contents` are the files of open rows that the lanes have sent. Raises OptionError if the driver would have to
        send more than RELAY_LIMIT to the lanes.
        """
        if self.relays:
            self._keep_relayed(manifest, contents)
        manifest = self._spill_inline(manifest)
        name = ManifestName(manifest.batch, self.generation, self.epoch)
        self.directory.write(f"{BATCHES}/{name.file}", manifest.to_json())
        self._latest = manifest
        self._files[name] = frozenset(manifest.files())
        if self._until_sweep == 0:
            self._sweep(manifest.batch)
            self._until_sweep = self.keep
        else:
            self._retire(
                [
                    manifest_name
                    for manifest_name in self._files
                    if manifest_name.batch <= manifest.batch - self.keep and self._ours(manifest_name)
                ]
            )
        self._until_sweep -= 1

    def _spill_inline(self, manifest: Manifest) -> Manifest:
        """`manifest`; if its rows exceed INLINE_LIMIT, write them into files first and leave them out."""
        if sum(map(len, manifest.inline.values())) <= INLINE_LIMIT:
            return manifest
        for name, content in manifest.inline.items():
            self.directory.write(f"{ROWS}/{name}", content)
        return replace(manifest, inline={})

    def _read(self, name: ManifestName) -> Manifest:
        with self.directory.open(f"{BATCHES}/{name.file}") as file:
            return Manifest.from_json(file.read())

    def _retire(self, names: Iterable[ManifestName]) -> None:
        """Delete manifests, and the files that no other manifest names."""
        dead_files: set[str] = set()
        for name in names:
            dead_files |= self._files.pop(name, frozenset())
            self.directory.delete(f"{BATCHES}/{name.file}")
        for file in dead_files.difference(*self._files.values()):
            self.directory.delete(f"{ROWS}/{file}")

    def _sweep(self, batch: int) -> None:
        """Delete superseded and old manifests, and rows of attempts that died: nothing that a run ahead may need."""
        names = _manifests(self.directory)
        newest = {name.batch: name for name in sorted(names)}
        stale = [
            name
            for name in names
            if self._ours(name) and (name is not newest[name.batch] or name.batch <= batch - self.keep)
        ]
        for name in stale:
            self._files.pop(name, None)
            self.directory.delete(f"{BATCHES}/{name.file}")
        for name in set(names) - set(stale) - set(self._files):
            self._files[name] = frozenset(self._read(name).files())
        files_in_use = frozenset[str]().union(*self._files.values())
        for file in self.directory.names(ROWS):
            if file not in files_in_use and self._is_dead(file, batch):
                self.directory.delete(f"{ROWS}/{file}")

    def _ours(self, name: ManifestName) -> bool:
        """Whether this run or an older one has published the manifest."""
        return (name.generation, name.epoch) <= (self.generation, self.epoch)

    def _is_dead(self, file: str, batch: int) -> bool:
        """Whether no manifest will ever name the unnamed `file` with rows, now that `batch` is published."""
        generation, epoch, batch_written = file.split("-")[:3]
        if (int(generation), epoch) == (self.generation, self.epoch):
            return True
        return int(generation) <= self.generation and int(batch_written) <= batch - LEAST_KEPT


def _manifests(directory: StateDirectory) -> list[ManifestName]:
    return [ManifestName.of(file) for file in directory.names(BATCHES) if file.endswith(".json")]


def _missing_state(batch: int, names: list[ManifestName]) -> InputError:
    rest_text = f"it has those of {min(names).batch} to {max(names).batch}" if names else "it has none at all"
    return InputError(
        f"The checkpoint lacks the assembler's state after micro-batch {batch - 1} ({rest_text}), so the source "
        "transactions that were open then are unknown.",
        hint="Restore the folder starrocks_txn_sink from the same copy as the rest of the checkpoint, or start with a "
        "new checkpoint at a place where no source transaction is open; rows that are in StarRocks already are left "
        "out. If another driver has gone on with this checkpoint meanwhile, start the query again.",
    )
