"""`python -m tools`: write the generated files of the repository; with `--check` only name those that are stale."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from integration import conformance
from tools import errors
from tools.alerts import RUNBOOK, rules
from tools.diagrams import DIAGRAMS, svg
from tools.grafana import dashboard_json
from tools.layout import layout_py
from tools.pages import PAGES, with_parts
from tools.runbook import runbook_page

ROOT = Path(__file__).parents[1]


def generate() -> Mapping[str, str]:
    """The content of each generated file, by its path in the repository."""
    pages = {name: with_parts((ROOT / name).read_text(encoding="utf-8"), parts) for name, parts in PAGES.items()}
    return {
        **pages,
        **{name: svg(diagram) for name, diagram in DIAGRAMS.items()},
        "docs/inside/conformance.md": conformance.with_recordings(conformance.PAGE.read_text(encoding="utf-8")),
        "docker/grafana/dashboards/starrocks-txn-sink.json": dashboard_json(),
        "docker/prometheus/alerts.yml": rules(),
        "starrocks_txn_sink/compiled/layout.py": layout_py(),
        "starrocks_txn_sink/metrics/page/operations.html": runbook_page(
            pages[RUNBOOK], {code: pages[errors.path(code)] for code in errors.CODES}
        ),
    }


def main(words: Sequence[str]) -> int:
    """Exit code 1 if a file was stale and is not to be written."""
    contents = generate()
    stale = [name for name, content in contents.items() if not _holds(ROOT / name, content)]
    check = "--check" in words
    for name in stale:
        if not check:
            (ROOT / name).write_text(contents[name], encoding="utf-8")
        sys.stdout.write(f"{name} {'is stale: make docs' if check else 'rewritten'}\n")
    return int(check and bool(stale))


def _holds(path: Path, content: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == content


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
