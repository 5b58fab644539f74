"""The command line: commands, version, missing extras, wrong usage, exit codes."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import starrocks_txn_sink
from starrocks_txn_ops import cli
from starrocks_txn_sink.errors import OptionError


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Stands in for whichever command module is imported; `run` can be replaced."""
    module = SimpleNamespace(imported=[], run=lambda _: 0, add_arguments=lambda p: p.add_argument("--seed", type=int))

    def import_module(name: str) -> Any:
        module.imported.append(name)
        return module

    monkeypatch.setattr(cli, "importlib", SimpleNamespace(import_module=import_module))
    return module


@pytest.mark.parametrize("command", ["demo", "emulator"])
def test_runs_the_named_command_with_its_own_options(fake: SimpleNamespace, command: str) -> None:
    fake.run = lambda args: args.seed
    assert cli.main([command, "--seed", "7"]) == 7
    assert fake.imported == [f"starrocks_{command}.command"]


def test_a_missing_extra_is_named_with_the_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def import_module(_: str) -> Any:
        raise ModuleNotFoundError("No module named 'duckdb'", name="duckdb")

    monkeypatch.setattr(cli, "importlib", SimpleNamespace(import_module=import_module))
    assert cli.main(["emulator"]) == 2
    assert capsys.readouterr().err == (
        "starrocks-txn-sink: duckdb is not installed. Run: pip install 'starrocks-txn-sink[emulator]'\n"
    )


def test_a_missing_extra_may_show_only_when_the_command_runs(
    fake: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(_: Any) -> int:
        raise ModuleNotFoundError("No module named 'rich'", name="rich.live")

    fake.run = run
    assert cli.main(["demo"]) == 2
    assert "pip install 'starrocks-txn-sink[demo]'" in capsys.readouterr().err


def test_a_command_that_needs_spark_names_its_extra() -> None:
    imports = """
import importlib, sys
from starrocks_txn_ops.cli import COMMANDS
sys.modules["pyspark"] = sys.modules["py4j"] = None
for command in COMMANDS:
    try:
        importlib.import_module(command.module)
    except ModuleNotFoundError:
        print(command.name, command.extra)
"""
    ended = subprocess.run([sys.executable, "-c", imports], capture_output=True, text=True, timeout=60, check=True)
    extras = dict(line.split() for line in ended.stdout.splitlines())
    assert {"plan", "init", "sync"} <= extras.keys()
    assert all("spark" in extra.split(",") for extra in extras.values()), extras


@pytest.mark.parametrize("package", sorted(cli.OWN_PACKAGES))
def test_a_module_of_ours_that_is_missing_is_a_bug_and_shows_as_one(fake: SimpleNamespace, package: str) -> None:
    def run(_: Any) -> int:
        raise ModuleNotFoundError("No module", name=f"{package}.nowhere")

    fake.run = run
    with pytest.raises(ModuleNotFoundError):
        cli.main(["demo"])


def test_an_error_of_ours_is_a_sentence_and_exit_code_1(
    fake: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(_: Any) -> int:
        raise OptionError("The folder is full.", hint="Empty it.")

    fake.run = run
    assert cli.main(["demo"]) == 1
    assert capsys.readouterr().err == "starrocks-txn-sink: The folder is full. Empty it.\n"


@pytest.mark.parametrize("words", [[], ["nonsense"], ["--", "demo"], ["demo", "--nonsense"], ["demo", "--seed", "x"]])
@pytest.mark.usefixtures("fake")
def test_wrong_usage_is_exit_code_2(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 2


@pytest.mark.usefixtures("fake")
def test_a_misspelt_option_shows_the_usage_of_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["demo", "--sead", "7"])
    output = capsys.readouterr().err
    assert output.startswith("usage: starrocks-txn-sink demo [-h] [--seed SEED]")
    assert "unrecognized arguments: --sead 7" in output


@pytest.mark.parametrize(
    ("command", "own_process", "limits"), [("sync", True, [1]), ("sync", False, []), ("status", True, [])]
)
def test_sync_limits_the_arenas_of_its_own_process_alone_before_its_module_is_imported(
    command: str, own_process: bool, limits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Any] = []

    def imported(name: str) -> None:
        done.append(name)
        raise OptionError("enough")

    monkeypatch.setattr(cli, "limit_arenas", done.append)
    monkeypatch.setattr(cli, "importlib", SimpleNamespace(import_module=imported))
    monkeypatch.setattr(sys, "argv", [cli.PROGRAM, command])
    cli.main(None if own_process else [command])
    module = next(each.module for each in cli.COMMANDS if each.name == command)
    assert done == [*limits, module]


def test_a_commands_help_keeps_the_names_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["where", "--help"])
    assert "Show which StarRocks transaction" in capsys.readouterr().out


def test_help_and_version_need_no_extra(capsys: pytest.CaptureFixture[str]) -> None:
    for words, expected in (
        (["--version"], f"starrocks-txn-sink {starrocks_txn_sink.__version__}\n"),
        (["--help"], "emulator"),
    ):
        with pytest.raises(SystemExit) as ended:
            cli.main(words)
        assert ended.value.code == 0
        assert expected in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "libraries"),
    [("demo", {"pyspark", "rich", "duckdb"}), ("where", {"pyspark", "pyarrow"}), ("status", {"pyspark", "pyarrow"})],
)
def test_a_commands_help_imports_no_large_library(command: str, libraries: set[str]) -> None:
    script = (
        "import sys; from starrocks_txn_ops.cli import main\n"
        f"try: main(['{command}', '--help'])\n"
        "except SystemExit as ended: assert ended.code == 0\n"
        f"assert not {libraries} & set(sys.modules), 'imported too much'\n"
    )
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (process.returncode, process.stderr) == (0, "")


def test_python_dash_m_is_the_same_program() -> None:
    process = subprocess.run(
        [sys.executable, "-m", "starrocks_txn_sink", "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert process.stdout == f"starrocks-txn-sink {starrocks_txn_sink.__version__}\n"
