"""The manifest log: what a micro-batch starts from, who counts, and what is deleted when."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import orjson
import pyarrow as pa
import pytest

from starrocks_txn_sink.assembler.rules.directory import FileDirectory, StateDirectory
from starrocks_txn_sink.assembler.rules.model import AssemblerState, OpenTransaction
from starrocks_txn_sink.assembler.rules.reading_clock import ReadingClock
from starrocks_txn_sink.assembler.rules.spill import BlobPlace, CarriedState, Manifest
from starrocks_txn_sink.errors import InputError, OptionError, StateNotWritten
from starrocks_txn_sink.sink.manifest_log import INLINE_LIMIT, ManifestLog
from tests.support.memory_directory import MemoryDirectory


def log(directory: StateDirectory, epoch: str = "e1", keep: int = 3) -> ManifestLog:
    return ManifestLog.open(directory, epoch, "q", keep)


def manifest(batch: int, *files: str, inline: dict[str, bytes] | None = None) -> Manifest:
    blobs = tuple(range(len(files)))
    state = AssemblerState(batch, (OpenTransaction("t", 1, 0.0, 1, 1, blobs),) if files else ())
    return Manifest(
        batch, "q", {"p": CarriedState(state, {n: BlobPlace(f, 0) for n, f in enumerate(files)})}, inline or {}
    )


def publish(log: ManifestLog, directory: StateDirectory, batch: int, *names: str) -> None:
    """A micro-batch whose lanes wrote the files `names`, and that leaves them open."""
    files = [f"{log.stem(batch)}-{name}" for name in names]
    for file in files:
        directory.write(f"rows/{file}", b"rows")
    log.publish(manifest(batch, *files))


def rows(directory: MemoryDirectory) -> list[str]:
    return sorted(name.removeprefix("rows/") for name in directory.files if name.startswith("rows/"))


def batches(directory: MemoryDirectory) -> list[str]:
    return sorted(name[len("batches/") + 9 : -5] for name in directory.files if name.startswith("batches/"))


def test_a_micro_batch_starts_from_the_one_before_also_after_a_restart() -> None:
    directory = MemoryDirectory()
    first = log(directory)
    assert first.before(0, may_begin=False) == Manifest()
    publish(first, directory, 0, "a")
    publish(first, directory, 1, "b")
    assert first.before(2, may_begin=False).batch == 1
    again = log(directory, "e2")
    assert again.before(2, may_begin=False) == first.before(2, may_begin=False)
    assert again.before(1, may_begin=False).files() == {"000001-e1-0-a"}


def test_batches_that_start_at_0_again_take_nothing_from_before() -> None:
    directory = MemoryDirectory()
    old = log(directory)
    for batch in range(3):
        publish(old, directory, batch, f"old{batch}")
    new = log(directory, "e2")
    assert new.before(0, may_begin=False) == Manifest()
    publish(new, directory, 0, "new")
    assert batches(directory) == ["000-000002-e2", "001-000001-e1", "002-000001-e1"], "what is ahead stays"
    for batch in range(1, 4):
        publish(new, directory, batch, "new")
    assert log(directory, "e3").before(2, may_begin=False).files() == {"000002-e2-1-new"}
    assert batches(directory) == [f"00{batch}-000002-e2" for batch in (1, 2, 3)], "until the query has overtaken it"
    assert rows(directory) == ["000001-e1-2-old2", *(f"000002-e2-{batch}-new" for batch in (1, 2, 3))]
    for batch in range(4, 7):
        publish(new, directory, batch, "new")
    assert rows(directory) == [f"000002-e2-{batch}-new" for batch in (4, 5, 6)]


def test_a_run_that_is_behind_leaves_the_state_of_the_run_ahead() -> None:
    """A driver goes on while another one starts: the late one repeats a micro-batch, and Spark ends it."""
    directory = MemoryDirectory()
    ahead = log(directory, "e1", keep=100)
    for batch in range(32):
        publish(ahead, directory, batch, "a")
    late = log(directory, "e2", keep=100)
    directory.write(f"rows/{ahead.stem(32)}-a", b"rows")  # its owner check has passed
    assert late.before(29, may_begin=False).files() == {"000001-e1-28-a"}
    publish(late, directory, 29, "b")
    ahead.publish(manifest(32, f"{ahead.stem(31)}-a", f"{ahead.stem(32)}-a"))
    next_run = log(directory, "e3", keep=100)
    assert next_run.before(30, may_begin=False).files() == {"000002-e2-29-b"}
    for batch in (31, 32):
        assert next_run.before(batch + 1, may_begin=False).files() <= {f"rows/{name}"[5:] for name in rows(directory)}
    publish(next_run, directory, 33, "c")
    assert batches(directory)[-4:] == ["030-000001-e1", "031-000001-e1", "032-000001-e1", "033-000003-e3"]
    for batch in range(34, 300):
        publish(next_run, directory, batch, "c")
    assert batches(directory) == [f"{batch:03d}-000003-e3" for batch in range(200, 300)], "nothing stays forever"
    assert rows(directory) == sorted(f"000003-e3-{batch}-c" for batch in range(200, 300))


def test_a_run_that_is_ahead_leaves_the_state_of_a_younger_run() -> None:
    directory = MemoryDirectory()
    ahead = log(directory, "e1", keep=2)
    for batch in range(4):
        publish(ahead, directory, batch, "a")
    late = log(directory, "e2", keep=2)
    publish(late, directory, 3, "b")
    for batch in range(4, 10):
        publish(ahead, directory, batch, "a")
    assert "003-000002-e2" in batches(directory)
    assert "000002-e2-3-b" in rows(directory)


def test_a_missing_manifest_is_an_error_unless_there_never_was_one() -> None:
    directory = MemoryDirectory()
    assert log(directory).before(7, may_begin=True) == Manifest(6, "q")
    with pytest.raises(InputError, match="none at all"):
        log(directory).before(7, may_begin=False)
    publish(log(directory), directory, 3, "a")
    with pytest.raises(InputError, match=r"after micro-batch 6 .*those of 3 to 3"):
        log(directory).before(7, may_begin=True)


def test_the_younger_of_two_runs_counts_and_keeps_what_it_wrote() -> None:
    directory = MemoryDirectory()
    paused, young = log(directory, "f"), log(directory, "a")
    publish(young, directory, 0, "y")
    publish(young, directory, 1, "y")
    publish(paused, directory, 0, "z")
    third = log(directory, "c")
    assert third.before(1, may_begin=False).files() == {"000002-a-0-y"}
    assert third.before(2, may_begin=False).files() == {"000002-a-1-y"}
    assert "000002-a-1-y" in rows(directory)


def test_of_two_manifests_of_a_micro_batch_the_younger_runs_counts() -> None:
    directory = MemoryDirectory()
    paused = log(directory, "f")
    publish(paused, directory, 0, "z")
    young = log(directory, "a")
    publish(young, directory, 0, "y")
    publish(young, directory, 1, "y")
    publish(paused, directory, 1, "z")  # it wakes up, and sweeps nothing: that comes with a run's first manifest
    assert batches(directory) == ["000-000002-a", "001-000001-f", "001-000002-a"]
    assert log(directory, "c").before(2, may_begin=False).files() == {"000002-a-1-y"}


def test_a_micro_batch_can_be_repeated_also_when_spark_retains_only_one() -> None:
    directory = MemoryDirectory()
    younger = log(directory, keep=1)
    for batch in range(4):
        publish(younger, directory, batch, "a")
    assert batches(directory) == ["002-000001-e1", "003-000001-e1"]
    again = log(directory, "e2", keep=1)  # it died before Spark marked micro-batch 3 as done
    assert again.before(3, may_begin=False).files() == {"000001-e1-2-a"}
    publish(again, directory, 3, "b")
    assert batches(directory) == ["002-000001-e1", "003-000002-e2"]


def test_old_manifests_go_and_rows_that_only_they_name() -> None:
    directory = MemoryDirectory()
    younger = log(directory, keep=3)
    publish(younger, directory, 0, "long")
    for batch in range(1, 8):
        directory.write(f"rows/{younger.stem(batch)}-own", b"")
        younger.publish(manifest(batch, f"{younger.stem(0)}-long", f"{younger.stem(batch)}-own"))
    assert batches(directory) == [f"00{batch}-000001-e1" for batch in (5, 6, 7)]
    assert rows(directory) == ["000001-e1-0-long", *(f"000001-e1-{batch}-own" for batch in (5, 6, 7))]


def test_rows_of_attempts_that_died_are_swept() -> None:
    directory = MemoryDirectory()
    first = log(directory, keep=3)
    publish(first, directory, 0, "a")
    directory.write(f"rows/{first.stem(1)}-dead", b"")
    second = log(directory, "e2", keep=3)
    publish(second, directory, 1, "b")
    assert rows(directory) == ["000001-e1-0-a", "000001-e1-1-dead", "000002-e2-1-b"], "the first run may still publish"
    directory.write(f"rows/{second.stem(2)}-dead", b"")
    for batch in range(2, 6):
        publish(second, directory, batch, "c")
    assert not {f"{first.stem(1)}-dead", f"{second.stem(2)}-dead"} & set(rows(directory))


def test_rows_inside_manifests_are_written_out_when_they_become_many() -> None:
    directory = MemoryDirectory()
    younger = log(directory)
    content = b"x" * INLINE_LIMIT
    younger.publish(manifest(0, "f0", inline={"f0": content}))
    assert younger.before(1, may_begin=False).inline == {"f0": content}
    younger.publish(manifest(1, "f0", "f1", inline={"f0": content, "f1": b"y"}))
    assert younger.before(2, may_begin=False).inline == {}
    assert directory.files["rows/f0"] == content
    assert directory.files["rows/f1"] == b"y"


def test_runs_take_generations_in_the_order_in_which_they_open() -> None:
    directory = MemoryDirectory()
    assert [log(directory, epoch).generation for epoch in ("z", "y", "x", "w")] == [1, 2, 3, 4]
    assert sorted(directory.names("owners")) == ["000003-x", "000004-w"]


# --- directories ---


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}"])
def test_a_directory_of_files(tmp_path: Path, form: str) -> None:
    directory = pickle.loads(pickle.dumps(FileDirectory(form.format(tmp_path / "made here"))))
    assert directory.names("rows") == []
    directory.write("rows/a", b"one")
    directory.write("rows/a", pa.py_buffer(b"another"))
    directory.write("rows/b", b"")
    with directory.open("rows/a") as file:
        assert file.read() == b"another"
    assert sorted(directory.names("rows")) == ["a", "b"]
    assert sorted(file.name for file in (tmp_path / "made here" / "rows").iterdir()) == ["a", "b"]
    directory.delete("rows/a")
    directory.delete("rows/a")
    with pytest.raises(FileNotFoundError):
        directory.open("rows/a")


def test_a_directory_that_cannot_be_written_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text("a file where a folder should be")
    with pytest.raises(StateNotWritten, match="executors may write"):
        FileDirectory(str(tmp_path)).write("rows/a", b"")


def test_a_file_system_that_nobody_knows_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(OptionError, match="state_dir"):
        FileDirectory("nowhere://bucket/path").write("a", b"")


def test_a_micro_batch_that_runs_again_gives_up_by_the_clock_of_its_first_run() -> None:
    directory = MemoryDirectory()
    first = log(directory)
    assert first.clock_of_overdue(7) is None
    first.keep_clock_of_overdue(7, ReadingClock(3.0, 2.0))
    again = log(directory, "e2")
    assert again.clock_of_overdue(7) == ReadingClock(3.0, 2.0)
    assert again.clock_of_overdue(8) is None
    again.keep_clock_of_overdue(8, ReadingClock(4.0))
    assert again.clock_of_overdue(7) == ReadingClock(3.0, 2.0), "Spark may not have marked 7 as done"
    again.keep_clock_of_overdue(9, ReadingClock(5.0))
    assert directory.names("overdue") == ["000000000008", "000000000009"]


def test_the_ids_of_topics_are_kept_and_a_manifest_of_an_earlier_release_has_none() -> None:
    after = replace(manifest(3), topics={"orders": "id"})
    assert Manifest.from_json(after.to_json()).topics == {"orders": "id"}
    former = orjson.loads(after.to_json())
    del former["topics"]
    assert Manifest.from_json(orjson.dumps(former)).topics == {}
