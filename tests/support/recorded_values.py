"""What a real server keeps of JSON values, by the type of their column."""

from __future__ import annotations

import json
from typing import Final

from tests.support.recordings import FOLDER

REFUSED: Final = object()
"""In place of what is kept of a value that the server refuses in strict mode."""


def recorded_values() -> dict[str, dict[str, object]]:
    """For each type the JSON texts that were sent, and the text or None of what is kept, or REFUSED.

    Values that the recording has by their length alone are left out. test_contract_values.py describes the file.
    """
    types: dict[str, dict[str, object]] = {}
    for line in (FOLDER / "values-4.1.1.jsonl").read_text(encoding="utf-8").splitlines():
        kind, sent, strict, *_ = json.loads(line)
        if isinstance(sent, str):
            types.setdefault(kind, {})[sent] = strict.get("kept", REFUSED)
    return types
