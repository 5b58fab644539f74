"""`python -m starrocks_txn_sink.metrics FOLDER`: write the generated files below a repository's root."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from starrocks_txn_sink.metrics.alerts import rules
from starrocks_txn_sink.metrics.grafana import dashboard_json
from starrocks_txn_sink.metrics.reference import reference


def generated() -> Mapping[str, str]:
    """The content of each generated file, by its path in the repository."""
    return {
        "docs/metrics.md": reference(),
        "docker/grafana/dashboards/starrocks-txn-sink.json": dashboard_json(),
        "docker/prometheus/alerts.yml": rules(),
    }


def main(root: Path) -> None:
    for name, content in generated().items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
