"""The statements that the product's source text holds: none is overlooked, and no sentence is taken for one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import product_sql
from tests.support.product_sql import statements

STATEMENTS = (
    "SELECT count(*) FROM information_schema.partitions_meta",
    "INSERT INTO t VALUES (1)",
    "DELETE FROM t WHERE a = %s",
    "ALTER TABLE {name} ADD COLUMN a INT",
    "SET query_timeout = 5",
    "SHOW FRONTENDS",
    "SHOW ALL STREAM LOAD FOR l",
    "SHOW PROC '/transactions'",
    "ADMIN SHOW FRONTEND CONFIG LIKE '%s'",
    "ADMIN SET FRONTEND CONFIG ('a'='b')",
    "ANALYZE TABLE t",
    "REFRESH EXTERNAL TABLE t",
    "GRANT INSERT ON TABLE t TO USER u",
    "KILL 7",
)
SENTENCES = ("SHOW FRONTENDS is refused", "SHOW GRANTS does not show it", "SELECT is needed", "LOAD failed")


@pytest.fixture
def product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(product_sql, "ROOT", tmp_path)
    monkeypatch.setattr(product_sql, "python_files", lambda: list(tmp_path.glob("*.py")))
    return tmp_path


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_new_statement_is_noticed(product: Path, statement: str) -> None:
    source = f'f"{statement}"' if "{" in statement else f'"{statement}"'
    (product / "module.py").write_text(f"name = 1\nstatement = {source}\n", encoding="utf-8")
    (new_statement,) = statements()
    place, pattern = new_statement
    assert place.endswith("module.py:2")
    assert pattern.match(statement.replace("{name}", "`t`").replace("%s", "x"))


@pytest.mark.parametrize("sentence", SENTENCES)
def test_a_sentence_is_no_statement(product: Path, sentence: str) -> None:
    (product / "module.py").write_text(f'"""Of statements."""\nmessage = "{sentence}"\n', encoding="utf-8")
    assert list(statements()) == []
