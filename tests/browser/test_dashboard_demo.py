"""The page of the demo, while it runs on real Spark: figures appear, move, and turn red when commits fail."""

from __future__ import annotations

import http.client
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import psutil
import pytest
from playwright.sync_api import Page, expect

from tests.support.screen import Screen, refresh
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.deep]

REPLY = '{"Status": "FAILED", "Message": "quorum"}'
FAIL = {"rules": [{"operation": "commit", "action": "answer", "body": REPLY}]}


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    words = "demo --metrics-port 0 --seconds 60 --rate 500 --partitions 2"
    with (tmp_path / "out").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "starrocks_txn_sink", *words.split()],
            env={**os.environ, "TMPDIR": str(tmp_path)},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    yield process
    process.terminate()
    process.wait(60)


def plan_faults(demo: subprocess.Popen[bytes]) -> None:
    """Tell the demo's emulator, a child of it, to let every commit fail; one of its ports is the frontend's."""
    for child in psutil.Process(demo.pid).children():
        if any("emulator" in word for word in child.cmdline()):
            ports = [place.laddr.port for place in child.net_connections("tcp4") if place.status == psutil.CONN_LISTEN]
            assert any(_planned(port) for port in ports)
            return
    raise AssertionError("The demo has no emulator.")


def _planned(port: int) -> bool:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/_emulator/faults", orjson.dumps(FAIL), method="POST")
    request.add_header("Authorization", "Basic cm9vdDo=")
    request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, http.client.HTTPException):  # the backend's port refuses, that of the MySQL protocol speaks first
        return False


def committed(page: Page) -> int:
    text = page.locator("#anatomy dt", has_text=re.compile("^committed$")).locator("xpath=../dd").inner_text()
    return int(text.split()[0].replace(",", ""))


def test_a_running_demo(demo: subprocess.Popen[bytes], tmp_path: Path, screen: Screen) -> None:
    printed: list[str] = []

    def address() -> bool:
        assert demo.poll() is None, (tmp_path / "out").read_text()
        printed[:] = re.findall(r"live page: (http://127\.0\.0\.1:\d+/)", (tmp_path / "out").read_text())
        return bool(printed)

    wait_until(address)
    page = screen.open(printed[0])

    def more_than(count: int) -> Callable[[], bool]:
        def moved() -> bool:
            refresh(page)
            return committed(page) > count

        return moved

    wait_until(more_than(0))
    expect(page.locator("#verdict")).to_have_attribute("data-light", "ok")
    expect(page.locator("#transactions tbody tr").first).to_be_visible()
    wait_until(more_than(committed(page) + 1))
    expect(page.locator("#fresh dd").nth(1)).to_have_text(re.compile(r"^[\d.]+ m?s$"))  # event times are known
    expect(page.locator("#partitions tbody tr")).to_have_count(2)
    assert screen.complaints == []

    plan_faults(demo)

    def red() -> bool:
        refresh(page)
        return "commit_failed" in page.locator("#sentence").inner_text()

    wait_until(red)
    expect(page.locator("#verdict")).to_have_attribute("data-light", "warn")  # it waits and writes again
    expect(page.locator("#transactions tbody tr.failed").first).to_be_visible()
