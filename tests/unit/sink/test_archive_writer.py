"""The class archive that makes itself: when, by what, and what keeps it from being written."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from starrocks_txn_sink import recommended_conf
from starrocks_txn_sink.class_archive import END, archive_file
from starrocks_txn_sink.sink import archive_writer
from starrocks_txn_sink.telemetry import Event

DRIVER = "spark.driver.extraJavaOptions"


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python environment, an installed Spark and a Java, and a process that has not asked yet."""
    jars, jdk, prefix = tmp_path / "spark" / "jars", tmp_path / "jdk", tmp_path / "environment"
    for folder in (jars, jdk / "bin", prefix):
        folder.mkdir(parents=True)
    (jars / "spark-core_2.13-4.3.0.jar").touch()
    (jdk / "bin" / "java").touch(mode=0o755)
    (jdk / "release").touch()
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.setenv("JAVA_HOME", str(jdk))
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    monkeypatch.delenv(archive_writer.SWITCH)
    monkeypatch.setattr(archive_writer, "_asked", threading.Event())
    monkeypatch.setattr(archive_writer, "free_bytes", lambda: 3 << 30)


def archive() -> Path:
    file = archive_file()
    assert file is not None
    return file


def context(conf: dict[str, str], process: object = "a JVM of this process") -> Any:
    return SimpleNamespace(_gateway=SimpleNamespace(proc=process), getConf=lambda: conf)


def asked(monkeypatch: pytest.MonkeyPatch, of: Any) -> list[float]:
    """The seconds after which a session, asked twice, has the archive written."""
    seconds = list[float]()
    monkeypatch.setattr(archive_writer, "active_context", lambda: of)
    for _ in range(2):
        archive_writer.write_later("job", lambda _: None, lambda after, _: seconds.append(after))
    return seconds


def test_a_session_that_found_none_has_it_written_once_and_not_at_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(monkeypatch, context(recommended_conf())) == [60.0]


@pytest.mark.parametrize(
    ("of", "switch"),
    [
        (lambda: context(recommended_conf()), "off"),
        (lambda: context(recommended_conf(), process=None), ""),  # spark-submit's
        (lambda: context({DRIVER: "-Xss16m"}), ""),  # its next start would not take the archive
        (lambda: context({DRIVER: recommended_conf()[DRIVER] + " -XX:SharedArchiveFile=/theirs.jsa"}), ""),
        (lambda: None, ""),  # Spark Connect
    ],
)
def test_others_have_none_written(of: Callable[[], Any], switch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(archive_writer.SWITCH, switch)
    assert asked(monkeypatch, of()) == []


def test_the_command_has_the_lowest_priority() -> None:
    words = archive_writer.command()
    assert words is not None
    assert words[1:] == ("-n", "19", sys.executable, "-m", "starrocks_txn_sink", "class-archive")


def there(_: pytest.MonkeyPatch) -> None:
    archive().parent.mkdir(parents=True)
    archive().write_bytes(END)


def being_written(_: pytest.MonkeyPatch) -> None:
    (archive().parent / "unfinished-x").mkdir(parents=True)


def files_of_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    conf = archive().parents[2] / "conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").touch()
    monkeypatch.setenv("SPARK_CONF_DIR", str(conf))


def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_writer, "free_bytes", lambda: 1 << 30)


def no_right(monkeypatch: pytest.MonkeyPatch) -> None:
    environment, access = archive().parents[2], os.access
    monkeypatch.setattr(os, "access", lambda folder, mode: folder != environment and access(folder, mode))


def failed_before(_: pytest.MonkeyPatch) -> None:
    archive_writer.write("job", lambda _: None, ["false"])


@pytest.mark.parametrize("reason", [there, being_written, files_of_settings, little_memory, no_right, failed_before])
def test_where_it_is_useless_or_a_burden_nothing_runs(
    reason: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    reason(monkeypatch)
    assert archive_writer.command() is None
    archive_writer.write("job", lambda _: pytest.fail("nothing is written"), archive_writer.command())


def test_what_a_killed_driver_left_and_a_failure_of_last_week_keep_nothing_from_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    being_written(monkeypatch)
    os.utime(archive().parent / "unfinished-x", (1, 1))
    failed_before(monkeypatch)
    assert archive_writer.command() is None
    os.utime(archive().with_suffix(".failed"), (1, 1))
    assert archive_writer.command() is not None


def test_it_is_said_and_a_new_java_is_a_new_try() -> None:
    events = list[Event]()
    archive_writer.write("job", events.append, ["false"])
    assert [event.name for event in events] == ["archive.started", "archive.ended"]
    assert [event.fields.get("code", 1) for event in events] == [1, 1]
    assert events[0].fields["file"] == str(archive())
    release = Path(os.environ["JAVA_HOME"], "release")
    release.write_text("another")
    assert archive_writer.command() is not None
    archive_writer.write("job", events.append, ["true"])
    assert events[-1].fields["code"] == 0
    assert archive_writer.command() is not None


def test_a_process_that_ends_takes_the_writer_along(tmp_path: Path) -> None:
    """A driver that is stopped while the archive is written leaves nothing running."""
    fifo = tmp_path / "writers"
    os.mkfifo(fifo)
    program = (
        "import threading, sys\n"
        "from starrocks_txn_sink.sink import archive_writer\n"
        "from pathlib import Path\n"
        "archive_writer.archive_file = lambda: Path('/nowhere/spark.jsa')\n"
        "words = ['sh', '-c', 'exec >' + sys.argv[1] + '; echo begun; sleep 600 & wait']\n"
        "work = lambda: archive_writer.write('job', lambda _: None, words)\n"
        "threading.Thread(target=work, daemon=True).start()\n"
        "sys.stdin.read()\n"
    )
    driver = subprocess.Popen([sys.executable, "-c", program, str(fifo)], stdin=subprocess.PIPE)
    with driver, fifo.open() as output:
        assert output.readline() == "begun\n"
        assert driver.stdin is not None
        driver.stdin.close()
        assert output.read() == ""  # the last one that writes has ended


def test_the_memory_of_a_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    limit, used, memory = (tmp_path / name for name in ("max", "current", "meminfo"))
    monkeypatch.setattr(archive_writer, "_LIMITS", ((str(limit), str(used)),))
    monkeypatch.setattr(archive_writer, "_MEMORY", memory)
    assert archive_writer.free_bytes() == sys.maxsize
    memory.write_text("MemTotal: 9000 kB\nMemAvailable:    4000 kB\n")
    limit.write_text("max\n")
    used.write_text("1000000\n")
    assert archive_writer.free_bytes() == 4_096_000
    limit.write_text("3000000\n")
    assert archive_writer.free_bytes() == 2_000_000
