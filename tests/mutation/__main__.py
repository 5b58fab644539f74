"""`python -m tests.mutation DIRECTORY`: the score of a mutmut run in DIRECTORY by module, JSON as last line."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

SURVIVED, UNTESTED = 0, 33  # exit codes of the tests, as mutmut keeps them; None: not judged yet


def main(directory: str) -> int:
    """Print mutants per module: killed, survived, without a test, not judged. The score is killed of judged."""
    total: Counter[str] = Counter()
    for meta in sorted(Path(directory, "mutants", "starrocks_txn_sink").rglob("*.py.meta")):
        codes = json.loads(meta.read_text()).get("exit_code_by_key", {}).values()
        counts = Counter(_fate(code) for code in codes)
        if counts:
            sys.stdout.write(f"{meta.stem:20} {_said(counts)}\n")
        total.update(counts)
    sys.stdout.write(json.dumps({**total, "score": _score(total)}) + "\n")
    return 0


def _fate(code: int | None) -> str:
    if code is None:
        return "not judged"
    return {SURVIVED: "survived", UNTESTED: "without a test"}.get(code, "killed")


def _said(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[fate]} {fate}" for fate in sorted(counts)) + f", score {_score(counts)}"


def _score(counts: Counter[str]) -> float:
    judgements = counts["killed"] + counts["survived"] + counts["without a test"]
    return round(counts["killed"] / judgements, 3) if judgements else 0.0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
