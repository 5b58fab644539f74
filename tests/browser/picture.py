"""The pictures of docs/operations/page.md, light and dark, of a running demo: python tests/browser/picture.py FILE"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.support.screen import ARGUMENTS, CHROMIUM

_BEFORE_THE_END = 5.0


def main(file: Path, seconds: float) -> int:
    """Let the demo write for `seconds`, and take the pictures shortly before it stops; 1 when it does not run."""
    words = [sys.executable, "-m", "starrocks_txn_sink", "demo", "--metrics-port", "0", "--seconds", str(seconds)]
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "said"
        with output.open("wb") as out, subprocess.Popen(words, stdout=out, stderr=subprocess.STDOUT) as demo:
            start_time = 0.0
            while demo.poll() is None and (not start_time or time.monotonic() < start_time + seconds - _BEFORE_THE_END):
                time.sleep(0.5)
                start_time = start_time or (time.monotonic() if "writing, " in output.read_text() else 0.0)
            if demo.poll() is not None:
                return 1
            address = re.search(r"live page: (\S+)", output.read_text())
            photograph(address[1] if address else "", file)
            demo.terminate()
            return 0


def photograph(address: str, file: Path) -> None:
    """The upper part of the page, as a laptop shows it, in light as `file` and in dark as `…-dark`."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = browser.new_page(viewport={"width": 1280, "height": 1110}, reduced_motion="reduce")
        page.goto(address)
        page.wait_for_selector("#transactions tbody tr")
        page.screenshot(path=file)
        page.emulate_media(color_scheme="dark")
        page.screenshot(path=file.with_stem(f"{file.stem}-dark"))
        browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=240.0)
    arguments = parser.parse_args()
    sys.exit(main(arguments.file, arguments.seconds))
