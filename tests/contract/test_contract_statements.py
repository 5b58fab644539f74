"""Every statement that the sink sends was put to a real server's parser (wire contract 6.5, 10.11).

The recordings `statements.json` are the catalogue: each statement with the values that it can have, and the answer. Who
adds a statement to the product adds it there; without a server to ask, its record has no answer yet.
"""

from __future__ import annotations

from tests.support.product_sql import statements
from tests.support.recordings import read, recordings, records

RECORDED = {
    name: record
    for path in recordings()
    if path.name == "statements.json"
    for name, record in records(read(path))
    if "statement" in record
}
REFUSED = {"the sink's own tables: ledger with too many replicas"}
"""Statements that the server has to refuse."""


def test_every_statement_of_the_product_is_recorded() -> None:
    """Wire contract 6.5, 10.11 [R: statements]."""
    statements_recorded = [record["statement"] for record in RECORDED.values()]
    missing = [
        f"{place}: {text.pattern}" for place, text in statements() if not any(map(text.match, statements_recorded))
    ]
    assert not missing, "Add these statements to statements.json:\n" + "\n".join(missing)


def test_no_statement_is_recorded_that_the_product_does_not_send() -> None:
    """Wire contract 6.5, 10.11 [R: statements]."""
    patterns = [text for _, text in statements()]
    stale = [name for name, record in RECORDED.items() if not any(text.match(record["statement"]) for text in patterns)]
    assert not stale


def test_the_server_took_every_statement() -> None:
    """Wire contract 6.5, 10.11 [R: statements]: it parsed and analyzed them. A record without an answer waits."""
    refused = {name for name, record in RECORDED.items() if "error" in record.get("answer", {})}
    assert refused == REFUSED
