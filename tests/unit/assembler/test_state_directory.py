"""The state directory on a local disk: a failed or killed write leaves no file that fills the disk."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from starrocks_txn_sink.assembler.rules.directory import FileDirectory
from starrocks_txn_sink.errors import OptionError, StateNotRead, StateNotWritten
from starrocks_txn_sink.sink.assembly import TransactionAssembly


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_write_that_fails_leaves_no_temporary_file(tmp_path: Path) -> None:
    directory = FileDirectory(str(tmp_path))
    (tmp_path / "segments" / "a" / "in-the-way").mkdir(parents=True)
    for _ in range(3):
        with pytest.raises(StateNotWritten):
            directory.write("segments/a", b"x" * 1000)
    assert files(tmp_path / "segments") == ["a"]
    directory.write("segments/b", b"y")
    assert files(tmp_path / "segments") == ["a", "b"]


def test_temporary_files_of_killed_tasks_are_removed_when_nobody_can_still_write_them(tmp_path: Path) -> None:
    folder = tmp_path / "segments"
    folder.mkdir()
    old, young, keep_file = folder / f".{'0' * 16}.tmp", folder / f".{'1' * 16}.tmp", folder / ".keep.tmp"
    for path in (old, young, keep_file):
        path.write_bytes(b"left")
    os.utime(old, (time.time() - 7200,) * 2)
    os.utime(keep_file, (time.time() - 7200,) * 2)
    FileDirectory(str(tmp_path)).write("segments/a", b"x")
    assert files(folder) == sorted([young.name, keep_file.name, "a"])


def test_files_and_folders_are_for_their_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        FileDirectory(f"file://{tmp_path}/state").write("batches/one", b"a row")
    finally:
        os.umask(before)
    modes = {file.name: file.stat().st_mode & 0o777 for file in (tmp_path / "state").rglob("*")}
    assert modes == {"batches": 0o700, "one": 0o600}
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700


def test_a_directory_that_is_not_shared_is_noticed_before_it_is_needed(tmp_path: Path) -> None:
    driver, executor = FileDirectory(str(tmp_path / "driver")), FileDirectory(str(tmp_path / "executor"))
    driver.write("owners/000001-abc", b"query")
    driver.require_shared("owners/000001-abc")
    with pytest.raises(OptionError, match=r"does not see the state directory .*executor of the driver"):
        executor.require_shared("owners/000001-abc")


def test_a_file_system_without_access_is_an_error_that_says_why(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"cannot keep their state under nonsense: \(pyarrow: Arrow\w+: \w+"):
        FileDirectory("nonsense://a/b").names("owners")
    (tmp_path / "owners").write_text("a file in the folder's place")
    with pytest.raises(StateNotRead, match=r"cannot read their state: NotADirectoryError: .*Not a directory"):
        FileDirectory(str(tmp_path)).names("owners")
    with pytest.raises(StateNotWritten, match=r"cannot write their state: \w+Error: "):
        FileDirectory(str(tmp_path)).write("owners/one", b"")
    (tmp_path / "batches").mkdir()
    with pytest.raises(StateNotWritten, match="old state cannot be deleted"):
        FileDirectory(str(tmp_path)).delete("batches")


@pytest.mark.parametrize("relative", ["state", "./state", "../x", "file:x", "dbfs:x/y"])
def test_a_relative_state_directory_is_refused(relative: str) -> None:
    with pytest.raises(OptionError, match="means another folder in each process"):
        TransactionAssembly(state_dir=relative)
    assert TransactionAssembly(state_dir="/state").state_dir == "/state"
    assert TransactionAssembly(state_dir="s3a://bucket/state").state_dir is not None
