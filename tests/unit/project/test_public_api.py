"""The public names and their signatures change only on purpose: `make api`, and a news fragment."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import textwrap
from dataclasses import fields
from importlib import import_module, metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import starrocks_emulator
import starrocks_txn_sink
from starrocks_txn_sink import SinkOptions, changelog, sources
from starrocks_txn_sink.errors import OptionError
from tests.unit.project.public_api import SNAPSHOT, render

ROOT = Path(__file__).parents[3]


def test_the_public_names_are_those_of_the_snapshot() -> None:
    assert render() == SNAPSHOT.read_text(encoding="utf-8"), "Run `make api` if this change is meant, and add news."


def _reference() -> dict[str, list[str] | None]:
    """The names on docs/reference/api.md, each with the members that it shows; None stands for all."""
    page = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    directives = re.findall(r"^\.\. (?:auto|py:)\w+:: (\w+).*\n((?: +:.*\n)*)", page, re.MULTILINE)
    members_shown: dict[str, list[str] | None] = {}
    for name, options in directives:
        assert name not in members_shown
        members = re.search(r":members:(.*)", options)
        members_shown[name] = [] if members is None else re.findall(r"\w+", members[1]) or None
    return members_shown


def test_every_public_name_is_in_the_reference() -> None:
    public = {*starrocks_txn_sink.__all__, *sources.__all__, *changelog.__all__} - {"__version__"}
    assert _reference().keys() == public


PAGES = [
    *(
        file
        for folder in ("docs", "docker")
        for file in sorted((ROOT / folder).rglob("*.md"))
        if file.parent.name != "inside"
    ),
    ROOT / "README.md",
]
PACKAGES = (starrocks_txn_sink, sources, changelog, starrocks_emulator)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_imports_only_public_names(page: Path) -> None:
    """From the documented modules, never from an inner one; the emulator only on its own page."""
    public = {package.__name__: package.__all__ for package in PACKAGES}
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Import):
                assert not [alias.name for alias in node.names if alias.name.startswith("starrocks_")]
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("starrocks_"):
                assert node.module in public, f"{node.module} is no documented module"
                assert {alias.name for alias in node.names} <= set(public[node.module])
                assert node.module != "starrocks_emulator" or page.name == "emulator.md"


def test_the_pages_with_imports_are_looked_at() -> None:
    assert sum("from starrocks_txn_sink" in page.read_text(encoding="utf-8") for page in PAGES) > 15


def _documented() -> dict[str, Any]:
    """The functions, classes and methods that the reference shows."""
    calls: dict[str, Any] = {}
    for name, members in _reference().items():
        home = next(package for package in (starrocks_txn_sink, sources, changelog) if name in package.__all__)
        value = getattr(home, name)
        if not callable(value) or name in ("ChangelogWarning", "BalancedKafka"):
            continue  # a text, and classes with Python's and Spark's own signatures
        calls[name] = value
        if inspect.isclass(value):
            names = vars(value) if members is None else members
            calls |= {
                f"{name}.{member}": getattr(value, member)
                for member in names
                if member == "__call__" or not member.startswith("_")
                if inspect.isroutine(getattr(value, member)) and inspect.getdoc(getattr(value, member))
            }
    return calls


DOCUMENTED = _documented()
STARS: dict[Any, str] = {inspect.Parameter.VAR_KEYWORD: "**", inspect.Parameter.VAR_POSITIONAL: "*"}


def test_the_methods_that_users_call_are_among_the_documented() -> None:
    assert {"StarRocksSink.write", "StarRocksSink.__call__", "MetricsServer.watch"} <= DOCUMENTED.keys()
    assert {"SinkOptions.from_properties", "Receipt.from_json", "parse_debezium"} <= DOCUMENTED.keys()


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_docstring_explains_each_parameter_and_no_other(name: str) -> None:
    parameters = [
        parameter for parameter in inspect.signature(DOCUMENTED[name]).parameters.values() if parameter.name != "self"
    ]
    text = inspect.getdoc(DOCUMENTED[name]) or ""
    section = re.search(r"^Args:\n((?: .*\n?|\n)*)", text, re.MULTILINE)
    explained = re.findall(r"^ {4}([*\w]+)(?: \(.*?\))?: \S", section[1] if section else "", re.MULTILINE)
    assert explained == [STARS.get(parameter.kind, "") + parameter.name for parameter in parameters]


def test_the_calls_that_users_make_first_have_an_example() -> None:
    first = {"StarRocksSink", "SinkOptions", "assemble_transactions", "TransactionAssembly", "run_forever"}
    first |= {"kafka_options", "parse_txn_events", "parse_debezium", "assemble_debezium", "MetricsServer"}
    first |= {"from_changelog", "to_changelog", "upsert_materializer", "to_starrocks_ops", "StarRocksDataSource"}
    assert first <= EXAMPLES.keys()


def _example(text: str) -> str | None:
    """The code below `Example::`, which Sphinx shows as a block of Python."""
    match = re.search(r"^Example::\n\n((?: .*\n?|\n)+)", text, re.MULTILINE)
    return match and textwrap.dedent(match[1])


EXAMPLES = {name: code for name, value in DOCUMENTED.items() if (code := _example(inspect.getdoc(value) or ""))}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_python_that_imports_public_names_and_passes_known_arguments(name: str) -> None:
    for node in ast.walk(ast.parse(EXAMPLES[name])):
        if isinstance(node, ast.ImportFrom):
            package = import_module(str(node.module))
            assert {alias.name for alias in node.names} <= set(getattr(package, "__all__", dir(package)))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in DOCUMENTED:
            words = {keyword.arg: None for keyword in node.keywords if keyword.arg}
            inspect.signature(DOCUMENTED[node.func.id]).bind(*node.args, **words)


def test_every_example_has_the_one_form() -> None:
    headed = [name for name, value in DOCUMENTED.items() if "Example" in (inspect.getdoc(value) or "")]
    assert headed == list(EXAMPLES)


def test_the_version_is_shown_in_one_way() -> None:
    assert starrocks_txn_sink.__version__ == metadata.version("starrocks-txn-sink")
    assert f"## {starrocks_txn_sink.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("package", [starrocks_txn_sink, changelog, sources])
def test_type_checkers_see_the_names_that_are_there(package: ModuleType) -> None:
    """The imports that only they read, and where each name is found at run time."""
    tree = ast.parse(Path(str(package.__file__)).read_text(encoding="utf-8"))
    (block,) = [node.body for node in tree.body if isinstance(node, ast.If)]
    imports = [node for node in block if isinstance(node, ast.ImportFrom)]
    modules = {alias.asname: node.module for node in imports for alias in node.names}
    assert modules == package._MODULES
    assert set(package.__all__) - {"__version__"} == modules.keys()
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = package.nonsense


@pytest.mark.parametrize("package", [starrocks_txn_sink, changelog, sources])
def test_completion_shows_the_public_names_and_nothing_else(package: ModuleType) -> None:
    assert {name for name in dir(package) if not name.startswith("__")} == set(package.__all__) - {"__version__"}


@pytest.mark.parametrize("name", ["StarRocksSink", "from_changelog", "sources.parse_txn_events"])
def test_a_name_that_needs_spark_says_so_where_there_is_none(name: str) -> None:
    module, _, last = f"starrocks_txn_sink.{name}".rpartition(".")
    code = f"import sys; sys.modules['pyspark'] = None\nfrom {module} import {last}"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    message = f"ImportError: {last} needs PySpark 3.5 or newer, and this Python has none."
    assert process.stderr.splitlines()[-1].startswith(message)
    assert "During handling" not in process.stderr


@pytest.mark.parametrize(
    ("name", "argument", "suggestion"),
    [
        ("SinkOptions", "load_ulr", "load_url"),
        ("TransactionAssembly", "line", "lines"),
        ("StarRocksSink", "rout", "routes"),
        ("assemble_transactions", "passtrough", "passthrough"),
    ],
)
def test_a_misspelt_argument_is_answered_with_the_right_one(name: str, argument: str, suggestion: str) -> None:
    with pytest.raises(OptionError, match=f"{name} has no argument '{argument}'. Did you mean {suggestion}\\?"):
        getattr(starrocks_txn_sink, name)(**{argument: 1})


# Spark makes data sources; errors, warnings and receipts are read, not made.
CALLED_BY_USERS = [name for name in DOCUMENTED if "." not in name]
CALLED_BY_USERS = sorted({*CALLED_BY_USERS} - {"StarRocksDataSource", "StarRocksSinkError", "Receipt", "kafka_options"})


def test_an_argument_that_is_like_no_other_is_answered_with_the_way_to_the_list() -> None:
    with pytest.raises(OptionError, match=r"no argument 'format'\. help\(SinkOptions\) lists its arguments\."):
        starrocks_txn_sink.SinkOptions(format="csv")  # type: ignore[call-arg]


def test_arguments_that_lack_are_named() -> None:
    with pytest.raises(OptionError, match=r"^SinkOptions needs load_url, database\. help\(SinkOptions\)"):
        starrocks_txn_sink.SinkOptions(job="shop")


@pytest.mark.parametrize("name", CALLED_BY_USERS)
def test_each_public_call_suggests_the_right_argument(name: str) -> None:
    *_, last = inspect.signature(DOCUMENTED[name]).parameters
    with pytest.raises(OptionError, match=f"Did you mean {last}\\?"):
        DOCUMENTED[name](**{f"{last}s": 1})


def test_the_docstring_of_the_options_has_each_of_them() -> None:
    option_names = re.findall(r"^ {4}(\w+) \(", str(SinkOptions.__doc__), re.MULTILINE)
    assert option_names == [option.name for option in fields(SinkOptions)]


def test_options_and_errors_need_no_spark() -> None:
    code = (
        "import sys; from starrocks_txn_sink import SinkOptions, StarRocksSinkError; sys.exit('pyspark' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.parametrize("module", ["starrocks_txn_sink.sink.plain_frames", "starrocks_txn_sink.writer.task"])
def test_a_data_sources_processes_and_the_lanes_load_no_other_part_of_the_driver(module: str) -> None:
    """Spark starts several processes for the first frame of a session, and each of them imports all of it."""
    unused = {
        "pandas",  # Arrow imports it for its first array; a data source's processes on the driver make none
        "starrocks_spark_stages.assemble.transactions",
        "starrocks_txn_sink.metrics.server",
        "starrocks_txn_sink.sink.events_writer",
        "starrocks_txn_sink.sink.sink",
        "starrocks_txn_sink.sink.supervisor",
    }
    code = f"import sys, {module}; sys.exit(', '.join({unused} & set(sys.modules)) or 0)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
