"""The folder in which one run keeps everything: events, checkpoint, the stand-in's data, logs."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from starrocks_txn_sink.errors import OptionError


@dataclass(slots=True)
class Workspace:
    """Paths below `root`; `lasting` says that the folder outlives the run."""

    root: Path
    lasting: bool

    @classmethod
    def open(cls, data_dir: Path | None, *, keep: bool) -> Workspace:
        """Make the folders. Raises OptionError if `data_dir` has something in it."""
        if data_dir is None:
            space = cls(Path(tempfile.mkdtemp(prefix="starrocks-txn-sink-demo-")), lasting=keep)
        else:
            if data_dir.exists() and (not data_dir.is_dir() or any(data_dir.iterdir())):
                raise OptionError(
                    f"--data-dir {data_dir} is not an empty folder.", hint="Name a new folder, or empty this one."
                )
            space = cls(data_dir.absolute(), lasting=True)
        for folder in (space.events, space.starrocks, space.spark):
            folder.mkdir(parents=True)
        return space

    @property
    def events(self) -> Path:
        return self.root / "events"

    @property
    def starrocks(self) -> Path:
        return self.root / "starrocks"

    @property
    def spark(self) -> Path:
        """Spark's own scratch files."""
        return self.root / "spark"

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    @property
    def spark_log(self) -> Path:
        return self.root / "spark.log"

    def close(self) -> None:
        """Remove the folder unless it is to last."""
        if not self.lasting:
            shutil.rmtree(self.root, ignore_errors=True)
