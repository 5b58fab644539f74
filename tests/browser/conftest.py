"""A real browser: Debian's Chromium, headless. Without it these tests are skipped; `make browser` installs it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from starrocks_txn_sink.metrics import MetricsServer
from tests.support.manual_clock import ManualClock
from tests.support.recorded import Pipeline
from tests.support.screen import ARGUMENTS, CHROMIUM, Screen

expect.set_options(timeout=30_000)  # a busy machine needs more than Playwright's five seconds


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        pytest.skip("Chromium (Debian's package chromium) is not installed.")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield chromium
        chromium.close()


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


@pytest.fixture
def screen(browser: Browser) -> Iterator[Screen]:
    new_screen = Screen(browser)
    yield new_screen
    new_screen.close()
