"""The pages of the error codes in `docs/operations/errors`: the head of each is made from the error's class.

The rest of a page is written by hand, and is the one home of its text: the index in the runbook and the endpoint's
page are made from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from starrocks_txn_sink.errors import (
    OF_COMMANDS,
    OptionError,
    Outage,
    SparkTooOld,
    StarRocksSinkError,
    Terminal,
    Transient,
)
from starrocks_txn_sink.metrics.catalogue import ERRORS, SPARK

FOLDER = "docs/operations/errors"
COMMANDS: Mapping[str, type[StarRocksSinkError]] = {kind.code: kind for kind in OF_COMMANDS}
"""Errors of commands, which no query meets."""
EXPLAINED: Mapping[str, type[StarRocksSinkError]] = {**ERRORS, **COMMANDS}
CODES = tuple(sorted([*EXPLAINED, SPARK]))

_BY_CALLS = (OptionError.code, SparkTooOld.code)
_SPARK = "An error of Spark or of the application."
_WHAT_THEN: Mapping[type, tuple[str, str]] = {
    Outage: (
        "the sink waits",
        "*Outage*: the sink tries again, then waits, until `batch_deadline`.",
    ),
    Transient: ("the sink tries again", "*Transient*: the sink tries again, under a new label."),
    Terminal: ("the query ends", "*Terminal*: a restart alone does not help."),
}


def path(code: str) -> str:
    """The page of a code, in the repository."""
    return f"{FOLDER}/{code}.md"


def _summary(code: str) -> str:
    return EXPLAINED[code].summary if code in EXPLAINED else _SPARK


def _what_then(code: str) -> tuple[str, str]:
    """What follows by itself: a word or two, and a sentence."""
    if code in COMMANDS:
        return "the command ends", "The command ends; no query meets this error."
    for kind, texts in _WHAT_THEN.items():
        if code in EXPLAINED and issubclass(EXPLAINED[code], kind):
            return texts
    return "the query ends", "The query ends; whether a restart helps depends on the cause."


def head(code: str) -> str:
    """The beginning of a page: what the error is, and what follows by itself."""
    origin = "The call raises it, mostly before a query starts. " if code in _BY_CALLS else ""
    return f"{_summary(code)}\n{origin}{_what_then(code)[1]}\n"


def index() -> str:
    """Every code with a link to its page, by what follows by itself; each has the anchor that a copy is asked for."""
    lists: dict[str, list[str]] = {}
    for code in CODES:
        lists.setdefault(_what_then(code)[0], []).append(f'<a id="error-{code}"></a>[`{code}`](errors/{code}.md)')
    return "".join(f"- *{what_then}*: {', '.join(codes)}\n" for what_then, codes in lists.items())


PAGES: Mapping[str, Mapping[str, Callable[[], str]]] = {path(code): {"error": partial(head, code)} for code in CODES}
"""The generated part of each page."""
