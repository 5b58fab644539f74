"""Words that users of Flink and of its StarRocks connector bring are in the glossary, and lead to a page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

GLOSSARY = Path(__file__).parents[3] / "docs" / "reference" / "glossary.md"
SECTION = "## Words of Flink and of its StarRocks connector"
WORDS = (
    "TransactionAssembler",
    "SharedTransactionCoordinator",
    "StarRocksRowData",
    "DefaultStarRocksRowData",
    "sourcePartition",
    "transactionEnd",
    "uniqueKey",
    "PartitionCommitTracker",
    "sink.buffer-flush.interval-ms",
    "commit interval",
    "sink.transaction.multi-table.enabled",
    "sink.semantic",
    "sink.label-prefix",
    "label conflict",
    "SinkUpsertMaterializer",
    "table.exec.sink.upsert-materialize",
    "upsert key",
    "FROM_CHANGELOG",
    "TO_CHANGELOG",
    "RowKind",
    "ChangelogNormalize",
    "event-time skew",
)


def rows() -> list[tuple[str, str]]:
    """The words and the meaning of each row of the section's table."""
    section = GLOSSARY.read_text(encoding="utf-8").partition(f"{SECTION}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^\| (.+?) \| (.+) \|$", section, re.MULTILINE)
    return [(words, meaning) for words, meaning in found if words != "word"]


@pytest.mark.parametrize("word", WORDS)
def test_a_word_of_flinks_leads_to_a_page(word: str) -> None:
    meanings = [meaning for words, meaning in rows() if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", words)]
    assert len(meanings) == 1
    assert re.search(r"\]\([\w./#-]+\)", meanings[0])
