"""The SQL that the product's source text holds, as patterns of what it sends."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.support.product_files import ROOT, python_files

_SQL = re.compile(
    r"""SELECT\s(?!is\b|without\b|from\sthe\b).*|INSERT\sINTO\s.+|DELETE\sFROM\s.+|UPDATE\s\S+\sSET\s.+|TRUNCATE\sTABLE\s.+
    |CREATE\s(TABLE|DATABASE|VIEW)\s(IF\sNOT\sEXISTS\s)?\0.*|ALTER\s(TABLE|DATABASE)\s\0.*|DROP\s(TABLE|DATABASE)\s.*\0.*
    |SET\s[a-z_]+\s=\s.+|SHOW\s(FRONTENDS|BACKENDS|COMPUTE\sNODES|DATABASES|GRANTS|VARIABLES|TABLES|TRANSACTION)
    |SHOW\sCREATE\sTABLE\s\0|SHOW\s[A-Z ]+\s(FROM|FOR|LIKE|WHERE|IN|['"\0]).*
    |(ANALYZE|REFRESH|SUBMIT|CANCEL|GRANT|REVOKE|BACKUP|RESTORE|EXPORT|LOAD|CALL|EXECUTE)\s[A-Z ]+\s.+
    |ADMIN\sSHOW\sFRONTEND\sCONFIG(\sLIKE\s.+)?|ADMIN\sSET\s.+|USE\s\0|KILL\s.+|EXPLAIN\s.+""",
    re.VERBOSE | re.DOTALL,
)
_MARKS = re.compile(r"%s|\{[^{}]*\}")


def statements() -> Iterator[tuple[str, re.Pattern[str]]]:
    """Every statement in the product: its place, and the pattern of the beginning of its text."""
    for path in python_files():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for line, text in _texts(tree):
            if _SQL.fullmatch(text):
                place = f"{path.relative_to(ROOT)}:{line}"
                yield place, re.compile(".+?".join(map(re.escape, text.split("\0"))), re.DOTALL)


def _texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Each text of the source but docstrings and parts of other texts, with NUL where a value is filled in."""
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    parts -= {id(node) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)}
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts | bare:
            yield node.lineno, _MARKS.sub("\0", node.value)
        elif isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(map(_part, node.values))


def _part(node: ast.expr) -> str:
    return _MARKS.sub("\0", str(node.value)) if isinstance(node, ast.Constant) else "\0"
