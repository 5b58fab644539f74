"""The class archive: which file belongs to which Spark and Java, when it is used, and how it is written."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from starrocks_txn_ops import class_archive, cli
from starrocks_txn_sink import recommended_conf
from starrocks_txn_sink.class_archive import END, archive_file
from starrocks_txn_sink.errors import OptionError

DRIVER = "spark.driver.extraJavaOptions"


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python environment with a space in its name, an installed Spark and a Java, all for this test alone."""
    prefix = tmp_path / "my environment"
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    for name in ("spark-core_2.13-4.3.0.jar", "zstd-jni-1.5.7.jar"):
        (tmp_path / "spark" / "jars" / name).touch()
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path / "jdk", "17.0.15")))
    return prefix


def java(home: Path, version: str) -> Path:
    (home / "bin").mkdir(parents=True, exist_ok=True)
    (home / "bin" / "java").touch(mode=0o755)
    (home / "release").write_text(f'JAVA_VERSION="{version}"\n')
    return home


def current() -> Path:
    file = archive_file()
    assert file is not None
    return file


def test_the_driver_takes_an_archive_that_is_there_and_no_other_process_does() -> None:
    without = recommended_conf()
    assert "SharedArchiveFile" not in "".join(without.values())
    class_archive.write_archive(current(), lambda file: file.write_bytes(b"classes"))
    conf = recommended_conf()
    in_place = "-XX:+UnlockDiagnosticVMOptions -XX:ArchiveRelocationMode=0"
    added = f" '-XX:SharedArchiveFile={current()}' {in_place} -Xlog:cds=off -Xlog:cds+dynamic=off"
    assert conf == without | {DRIVER: without[DRIVER] + added}


def another_java(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java(folder / "other", "21.0.7")))


def updated_java(folder: Path, _: pytest.MonkeyPatch) -> None:
    java(folder / "jdk", "17.0.16")


def java_on_the_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "bin").mkdir()
    (folder / "bin" / "java").symlink_to(java(folder / "other", "21.0.7") / "bin" / "java")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(folder / "bin"))


def another_spark(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "spark").rename(folder / "spark-4")
    monkeypatch.setenv("SPARK_HOME", str(folder / "spark-4"))


def newer_spark(folder: Path, _: pytest.MonkeyPatch) -> None:
    (core,) = (folder / "spark" / "jars").glob("spark-core_*")
    core.rename(core.with_name("spark-core_2.13-4.3.1.jar"))


def installed_again(folder: Path, _: pytest.MonkeyPatch) -> None:
    (core,) = (folder / "spark" / "jars").glob("spark-core_*")
    os.utime(core, (1, 1))


def other_settings(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(folder))


def added_jar(folder: Path, _: pytest.MonkeyPatch) -> None:
    (folder / "spark" / "jars" / "spark-sql-kafka-0-10_2.13-4.3.0.jar").touch()


def listed_in_another_order(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an image's folder is on another machine."""
    scan = os.scandir

    @contextmanager
    def backwards(folder: Path) -> Iterator[Iterator[os.DirEntry[str]]]:
        with scan(folder) as entries:
            yield reversed(list(entries))

    monkeypatch.setattr(os, "scandir", lambda place: backwards(place) if isinstance(place, Path) else scan(place))


def settings_beside_spark(folder: Path, _: pytest.MonkeyPatch) -> None:
    (folder / "spark" / "conf").mkdir()
    (folder / "spark" / "conf" / "spark-defaults.conf").touch()


CHANGES = [
    another_java,
    updated_java,
    java_on_the_path,
    another_spark,
    newer_spark,
    installed_again,
    other_settings,
    added_jar,
    listed_in_another_order,
    settings_beside_spark,
]


@pytest.mark.parametrize("change", CHANGES)
def test_an_archive_of_another_java_or_spark_is_left_alone_and_replaced(
    change: Callable[[Path, pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class_archive.write_archive(current(), lambda file: file.write_bytes(b"classes"))
    change(tmp_path, monkeypatch)
    assert "SharedArchiveFile" not in recommended_conf()[DRIVER]
    class_archive.write_archive(current(), lambda file: file.write_bytes(b"others"))
    assert [file.read_bytes() for file in current().parent.iterdir()] == [b"others" + END]
    assert str(current()) in recommended_conf()[DRIVER]


@pytest.mark.parametrize("lacking", ["jdk/release", "jdk", "spark/jars"])
def test_without_java_or_spark_there_is_none(lacking: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / lacking).rename(tmp_path / "away")
    assert archive_file() is None
    assert "SharedArchiveFile" not in recommended_conf()[DRIVER]
    assert cli.main(["class-archive"]) == 1
    assert "Install a JDK 17" in capsys.readouterr().err


def test_the_command_leaves_an_archive_that_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    class_archive.write_archive(current(), lambda file: file.write_bytes(b"classes"))
    assert cli.main(["class-archive"]) == 0
    assert capsys.readouterr().out == f"{current()} is there already.\n"


@pytest.mark.parametrize("length", [0, 10, 1000, 1024 + len(END) - 1])
def test_an_archive_that_was_cut_is_not_used_but_written_again(
    length: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class_archive.write_archive(current(), lambda file: file.write_bytes(bytes(1024)))
    whole = current().read_bytes()
    current().write_bytes(whole[:length])
    assert "SharedArchiveFile" not in recommended_conf()[DRIVER]
    monkeypatch.setattr(class_archive, "write_archive", lambda file: file.write_bytes(whole))
    assert cli.main(["class-archive"]) == 0
    assert "MB, written in" in capsys.readouterr().out
    assert "SharedArchiveFile" in recommended_conf()[DRIVER]


def test_two_commands_at_once_leave_one_whole_archive(environment: Path) -> None:
    both = threading.Barrier(2)

    def write(file: Path) -> None:
        file.write_bytes(b"classes")
        both.wait(20)

    with ThreadPoolExecutor(2) as pool:
        for writer in [pool.submit(class_archive.write_archive, current(), write) for _ in range(2)]:
            writer.result()
    assert [*(environment / "share" / "starrocks-txn-sink").iterdir()] == [current()]
    assert current().read_bytes() == b"classes" + END


def test_a_session_that_fails_leaves_nothing_behind(environment: Path) -> None:
    def half(file: Path) -> None:
        file.write_bytes(b"half")
        raise OptionError("Java wrote no class archive.", hint="Install another one.")

    with pytest.raises(OptionError, match="wrote no class archive"):
        class_archive.write_archive(current(), half)
    assert not list((environment / "share" / "starrocks-txn-sink").iterdir())


def test_a_folder_that_cannot_be_written_is_an_error_with_a_remedy(environment: Path) -> None:
    environment.touch()
    with pytest.raises(OptionError, match="who installs packages"):
        class_archive.write_archive(current(), lambda file: file.write_bytes(b"classes"))


def test_the_reason_of_a_jvm_that_writes_none_is_in_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.CompletedProcess([], 1, stdout="", stderr="…\nCannot have non-empty directory in paths\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: process)
    with pytest.raises(OptionError, match="Cannot have non-empty directory in paths"):
        class_archive.run_apart(tmp_path / "unfinished.jsa")


@pytest.mark.parametrize("code", [1, -9])
def test_what_a_jvm_writes_after_a_failure_is_no_archive(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfinished = tmp_path / "unfinished.jsa"
    unfinished.write_bytes(b"half")
    process = subprocess.CompletedProcess([], code, stdout="", stderr="the JVM ended")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: process)
    with pytest.raises(OptionError, match="the JVM ended"):
        class_archive.run_apart(unfinished)


def test_the_session_is_of_this_machine_whatever_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfinished = tmp_path / "unfinished.jsa"
    for name in ("SPARK_REMOTE", "SPARK_API_MODE", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH"):
        monkeypatch.setenv(name, "of a cluster")

    def run(*_: object, env: dict[str, str], **__: object) -> subprocess.CompletedProcess[str]:
        assert [name for name, value in env.items() if value == "of a cluster"] == ["SPARK_DIST_CLASSPATH"]
        unfinished.touch()
        return subprocess.CompletedProcess([], 0, stdout="", stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    class_archive.run_apart(unfinished)


@pytest.mark.parametrize("name", ["environment", "it's an environment", 'a "quoted" one'])
def test_java_gets_the_name_of_any_environment(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unfinished = tmp_path / name / "unfinished.jsa"
    assert f"-XX:ArchiveClassesAtExit={unfinished}" in shlex.split(class_archive.session_conf(unfinished)[DRIVER])
    monkeypatch.setattr(sys, "prefix", str(tmp_path / name))
    class_archive.write_archive(current(), lambda file: file.write_bytes(b"classes"))
    assert f"-XX:SharedArchiveFile={current()}" in shlex.split(recommended_conf()[DRIVER])


def test_the_command_removes_what_a_killed_run_left_and_no_folder_of_a_running_one() -> None:
    class_archive.write_archive(current(), lambda file: file.write_bytes(b"classes"))
    for name in ("unfinished-killed", "unfinished-running"):
        (current().parent / name / "local").mkdir(parents=True)
    os.utime(current().parent / "unfinished-killed", (1, 1))
    assert cli.main(["class-archive"]) == 0
    assert {file.name for file in current().parent.iterdir()} == {current().name, "unfinished-running"}


def test_a_command_that_is_stopped_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(unfinished: Path) -> None:
        unfinished.touch()
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(class_archive.write_archive, "__defaults__", (stopped,))
    monkeypatch.setattr(class_archive, "require_java", lambda: None)
    with pytest.raises(SystemExit):
        cli.main(["class-archive"])
    assert not list(current().parent.iterdir())


def test_a_job_maps_the_old_archive_while_a_new_one_is_written() -> None:
    class_archive.write_archive(current(), lambda file: file.write_bytes(b"old"))
    with current().open("rb") as mapped:
        class_archive.write_archive(current(), lambda file: file.write_bytes(b"new"))
        assert (mapped.read(), current().read_bytes()) == (b"old" + END, b"new" + END)
