"""A real browser: Debian's Chromium, headless. Without it these tests are skipped; `make browser` installs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from recorded import Pipeline

from starrocks_txn_sink.metrics import MetricsServer
from starrocks_txn_sink.testing.manual_clock import ManualClock

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run", "--disable-sync"]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        pytest.skip("Chromium (Debian's package chromium) is not installed.")
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield found
        found.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def metrics(clock: ManualClock) -> Iterator[MetricsServer]:
    with MetricsServer(0, clock=clock) as server:
        yield server


@pytest.fixture
def pipeline(metrics: MetricsServer, clock: ManualClock) -> Pipeline:
    return Pipeline(metrics, clock)


class Screen:
    """Opens pages; at the end none may have complained or asked anybody else."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self.complaints: list[str] = []
        self.asked: set[str] = set()
        self._contexts: list[Any] = []

    def open(self, url: str, *, width: int = 1440, height: int = 900, scheme: Any = "light") -> Page:
        context = self._browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce"
        )
        self._contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.asked.add(urlsplit(request.url).netloc))
        page.goto(url)
        page.wait_for_selector("#verdict:has-text('.')")
        return page

    def close(self) -> None:
        for context in self._contexts:
            context.close()


@pytest.fixture
def screen(browser: Browser) -> Iterator[Screen]:
    made = Screen(browser)
    yield made
    made.close()


def refresh(page: Page) -> None:
    """Have the page ask now, rather than within its two seconds."""
    with page.expect_response("**/api/state*"):
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
