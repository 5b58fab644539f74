"""The bar for long runs: on a terminal only, and every item comes through."""

from __future__ import annotations

import io

from tests.support.terminal import Terminal

from .bar import on_terminal


def test_items_come_through_with_and_without_a_terminal() -> None:
    plain, terminal = io.StringIO(), Terminal()
    assert list(on_terminal(range(3), 3, plain)) == list(on_terminal(range(3), 3, terminal)) == [0, 1, 2]
    assert plain.getvalue() == ""
    assert "schedules" in terminal.getvalue()
