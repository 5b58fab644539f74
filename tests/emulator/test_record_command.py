"""`make record` from its start to the file to send, on an engine whose StarRocks is the emulator."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.parcel import LEFT_OUT, parcel
from tests.support.docker_engine import FakeEngine
from tests.support.recordings import write

ROOT = Path(__file__).parents[2]
IMAGE = "starrocks/allin1-ubuntu:4.1.1"

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="There is no make here.")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[FakeEngine]:
    with FakeEngine(tmp_path / "containers") as engine:
        yield engine


def record(folder: Path, address: str, selection: str) -> subprocess.CompletedProcess[str]:
    """The documented command, in this environment, with `selection` of its tests; it records into `folder`."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "MAKE", "MFLAGS"))
    }
    # In a container testcontainers would look for the engine's other containers at the gateway.
    of_docker = {"DOCKER_HOST": address, "TESTCONTAINERS_CONNECTION_MODE": "docker_host"}
    variables = [f"BIN={Path(sys.executable).parent}", f"RECORD={folder}", f"ARGS={selection}"]
    command = ["make", "--assume-old=.venv/.installed", "record", *variables]
    return subprocess.run(
        command, cwd=ROOT, env={**inherited, **of_docker}, check=False, capture_output=True, text=True, timeout=280
    )


def recorded(folder: Path) -> dict[str, str]:
    """The texts of the file to send, by their names in it."""
    with zipfile.ZipFile(f"{folder}.zip") as file:
        return {name: file.read(name).decode() for name in file.namelist() if not name.endswith("/")}


def test_one_command_makes_a_file_of_a_fresh_servers_answers(engine: FakeEngine, tmp_path: Path) -> None:
    folder = tmp_path / "recordings"
    run = record(folder, engine.address, "-k 'only_loads or (is_recorded and http)'")
    assert run.returncode == 0, run.stdout + run.stderr
    files = recorded(folder)
    assert sorted(files) == ["recordings/real-4.0.7/http.json", "recordings/real.xml"]
    recording = json.loads(files["recordings/real-4.0.7/http.json"])
    assert (recording["mark"], recording["server"]) == ("real", "StarRocks 4.0.7-emulator")
    assert all("answer" in record for scene in recording["scenes"] for record in scene["records"])
    assert socket.gethostname() not in files["recordings/real.xml"]
    lines = run.stdout.splitlines()[-2:]
    assert lines[0] == f"The file to send: {folder}.zip"
    assert "1 recording of StarRocks 4.0.7-emulator" in lines[1]
    assert "5 passed, 0 failed, 0 skipped" in lines[1]
    assert engine.pulled == ["testcontainers/ryuk:0.8.1", IMAGE]
    assert sorted(engine.removed) == [IMAGE, "testcontainers/ryuk:0.8.1"]
    assert engine.reaped.wait(10)


@pytest.mark.deep
def test_the_file_has_the_rehearsal_and_the_sink_on_spark(engine: FakeEngine, tmp_path: Path) -> None:
    folder = tmp_path / "recordings"
    run = record(folder, engine.address, "-k 'sink_relies_on or a_replay_writes or (is_recorded and sql)'")
    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads(recorded(folder)["recordings/rehearsal-4.0.7-emulator.json"])
    assert {check["verdict"] for check in report["checks"]} <= {"as expected", "differs, harmless", "left out"}
    assert "1 recording and a rehearsal of StarRocks 4.0.7-emulator" in run.stdout
    assert "(3 passed, 0 failed, 0 skipped)" in run.stdout


def test_failed_tests_are_counted_and_sent_without_the_machines_name(tmp_path: Path) -> None:
    folder = tmp_path / "recordings"
    write(folder / "real-4.1.1" / "http.json", {"server": "StarRocks 4.1.1-ad83983", "scenes": []})
    failure = f'<testcase name="a"><failure>{Path.home()}/checkout/x.py: other</failure></testcase>'
    attributes = 'tests="9" failures="1" errors="2" skipped="3"'
    results = (
        f'<testsuites><testsuite name="pytest" {attributes} hostname="laptop-of-ann">{failure}</testsuite></testsuites>'
    )
    (folder / "real.xml").write_text(results)
    (folder / LEFT_OUT).write_text("Left out, 2: No StarRocks is needed.\n  a\n  b\n")
    text = parcel(folder)
    assert "(3 passed, 3 failed, 3 skipped)" in text
    assert text.endswith("\nLeft out, 2: No StarRocks is needed.")
    (junit,) = (text for name, text in recorded(folder).items() if name.endswith(".xml"))
    assert "laptop" not in junit
    assert ">~/checkout/x.py: other<" in junit


def test_without_an_engine_it_says_what_to_do_and_makes_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "recordings"
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = f"tcp://127.0.0.1:{closed.getsockname()[1]}"
    run = record(folder, nobody, "-k only_loads")
    assert run.returncode != 0
    assert "No Docker engine answers here" in run.stderr
    assert 'make test SERVER="http' in run.stderr
    assert not Path(f"{folder}.zip").exists()


@pytest.mark.deep
def test_an_image_that_no_registry_has_is_one_sentence_a_test(engine: FakeEngine, tmp_path: Path) -> None:
    folder = tmp_path / "recordings"
    engine.missing = frozenset({IMAGE})
    run = record(folder, engine.address, "-k 'is_recorded and (http or sql)'")
    assert run.returncode != 0
    assert f"did not start {IMAGE}: " in run.stdout
    assert f"manifest for {IMAGE} not found" in run.stdout
    assert "Traceback" not in run.stdout
    assert "Nothing was recorded, so there is no file to send." in run.stderr
    assert not Path(f"{folder}.zip").exists()
