"""Pages in headless Chromium that are watched for complaints."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run", "--disable-sync"]


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


def refresh(page: Page) -> None:
    """Have the page ask now, rather than within its two seconds."""
    with page.expect_response("**/api/state*"):
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
