"""The endpoint over HTTP: what it serves, to whom, and what is left when it is closed."""

from __future__ import annotations

import http.client
import pickle
import shutil
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families

from starrocks_txn_sink import SinkOptions
from starrocks_txn_sink.coordinator.model import PositionSpan, Receipt, RegionCount
from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.metrics import MetricsServer
from starrocks_txn_sink.metrics.catalogue import METRICS, MetricKind
from starrocks_txn_sink.metrics.http_listener import MOST_REQUESTS, HttpListener
from starrocks_txn_sink.metrics.server import ASSETS, shared_server
from starrocks_txn_sink.telemetry import Event
from tests.support.manual_clock import ManualClock
from tests.support.threads import running
from tests.support.waiting import wait_until

PROMTOOL = shutil.which("promtool")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def server(clock: ManualClock) -> Iterator[MetricsServer]:
    with MetricsServer(0, clock=clock) as running:
        yield running


def get(server: MetricsServer, path: str, **headers: str) -> tuple[int, str, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=10)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers
    finally:
        connection.close()


def commit(server: MetricsServer, clock: ManualClock) -> None:
    regions, positions = (RegionCount("0", "orders", 5, 100),), (PositionSpan("0", 1, 9, 2),)
    receipt = Receipt("l", 1, "shop", 3, regions, positions, 1, 1, 0, False, {}, clock.wall())
    server(Event("batch.started", {"job": "shop", "batch_id": 3, "lanes": 1, "query": "q"}))
    server(Event("receipt.collected", {"receipt": receipt}))
    server(Event("batch.completed", {"job": "shop", "batch_id": 3, "seconds": 0.1, "receipts": 1}))


def test_every_metric_is_there_from_the_start_with_its_help_and_kind(server: MetricsServer) -> None:
    status, text, headers = get(server, "/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain")
    families = {family.name: family for family in text_string_to_metric_families(text)}
    for metric in METRICS:
        family = families[
            metric.full_name.removesuffix("_total") if metric.kind is MetricKind.COUNTER else metric.full_name
        ]
        assert family.type == metric.kind.value
        assert family.documentation == metric.help
        assert family.samples or (metric.labels and not metric.initial), metric.name
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels)


def test_the_names_units_and_labels_are_the_ones_that_were_agreed() -> None:
    agreed = """
        source_transactions_total{outcome} rows_total{table,op} bytes_total{table,encoding} commits_total{outcome}
        requests_total{operation,status} retries_total{operation,reason} errors_total{code}
        dead_letter_rows_total{table,reason} integrity_violations_total{kind} commit_duration_seconds
        phase_duration_seconds{phase} load_duration_seconds{table} end_to_end_latency_seconds transactions_per_commit
        open_source_transactions oldest_open_transaction_timestamp_seconds assembler_state_bytes inflight_loads
        buffer_bytes buffer_limit_bytes open_starrocks_transactions in_doubt_transactions{sink_job}
        last_committed_batch_id{sink_job} last_commit_timestamp_seconds{sink_job} job_info{sink_job,database}
        partition_position{partition} event_time_skew_seconds
    """
    names = {metric.name + (f"{{{','.join(metric.labels)}}}" if metric.labels else "") for metric in METRICS}
    assert set(agreed.split()) <= names


def test_a_histogram_counts_what_is_at_most_each_bound(server: MetricsServer, clock: ManualClock) -> None:
    for _ in range(3):
        commit(server, clock)
    text = get(server, "/metrics")[1]
    (family,) = [
        family for family in text_string_to_metric_families(text) if family.name.endswith("batch_duration_seconds")
    ]
    buckets = {sample.labels["le"]: sample.value for sample in family.samples if sample.name.endswith("_bucket")}
    sums = {
        sample.name.rpartition("_")[2]: sample.value for sample in family.samples if not sample.name.endswith("_bucket")
    }
    assert [buckets[bound] for bound in ("0.075", "0.1", "0.15", "21600.0", "+Inf")] == [0, 3, 3, 3, 3]
    assert sums == {"count": 3, "sum": pytest.approx(0.3)}


@pytest.mark.skipif(PROMTOOL is None, reason="promtool (Debian's package prometheus) is not installed.")
def test_promtool_finds_nothing_to_say_about_names_types_and_help(server: MetricsServer, clock: ManualClock) -> None:
    commit(server, clock)
    words = [str(PROMTOOL), "check", "metrics"]
    text = get(server, "/metrics")[1]
    process = subprocess.run(words, input=text, capture_output=True, text=True, timeout=60, check=False)
    assert (process.returncode, process.stdout, process.stderr) == (0, "", "")


def test_a_scraper_may_ask_for_openmetrics(server: MetricsServer) -> None:
    _, text, headers = get(server, "/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert headers["Content-Type"].startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")


def test_a_commit_shows_in_metrics_and_readiness(server: MetricsServer, clock: ManualClock) -> None:
    assert get(server, "/readyz")[0] == 503
    commit(server, clock)
    assert get(server, "/readyz")[0] == 200
    text = get(server, "/metrics")[1]
    assert 'starrocks_txn_sink_rows_total{op="upsert",table="orders"} 5.0' in text
    assert 'starrocks_txn_sink_partition_position{partition="0"} 9.0' in text
    clock.advance(61)
    status, content, _ = get(server, "/readyz")
    assert (status, content) == (503, "Job shop made its last progress 61 s ago; the limit is 60 s.\n")
    assert get(server, "/healthz")[:2] == (200, "alive\n")


@pytest.mark.parametrize("path", ["/", "/dashboard.css", "/dashboard.js", "/drawing.js", "/api/state"])
def test_the_page_needs_nothing_from_elsewhere_and_may_not_ask_for_it(server: MetricsServer, path: str) -> None:
    status, body, headers = get(server, path)
    assert status == 200
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "//" not in body.replace("http://www.w3.org/2000/svg", "").replace("// ", "")


def test_the_runbook_has_an_anchor_for_every_heading_and_is_text_only(server: MetricsServer) -> None:
    status, body, _ = get(server, "/runbook")
    assert status == 200
    assert '<h3 id="error-commit_failed">Error commit_failed</h3>' in body
    assert "<script" not in body


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost:1", 200), ("127.0.0.1", 200), ("[::1]:9", 200), ("evil.example", 403), ("", 403), ("[", 403)],
)
def test_on_loopback_only_this_machines_names_are_answered(server: MetricsServer, host: str, status: int) -> None:
    assert get(server, "/api/state", Host=host)[0] == status


def test_nothing_else_is_served(server: MetricsServer) -> None:
    for path in ("/nowhere", "/../pyproject.toml", "/page/index.html", "//etc/passwd"):
        assert get(server, path)[0] == 404


def test_a_bug_while_answering_shows_and_stays_there(server: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("starrocks_txn_sink.metrics.server.dashboard_state", lambda *_: 1 / 0)
    assert get(server, "/api/state")[:2] == (500, "ZeroDivisionError while answering.\n")
    assert get(server, "/healthz")[0] == 200


def test_many_ask_while_events_come(server: MetricsServer, clock: ManualClock) -> None:
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(get, server, path) for path in ("/metrics", "/api/state") * 20]
        for _ in range(200):
            commit(server, clock)
        assert {answer.result()[0] for answer in futures} == {200}
    assert 'commits_total{outcome="committed"} 200.0' in get(server, "/metrics")[1]


THREADS = "starrocks-metrics"  # Spark's threads come and go in this process


def test_closing_leaves_no_thread_and_starting_again_works() -> None:
    before = running(THREADS)
    server = MetricsServer(0)
    assert server.url == ""
    server.start()
    server.start()
    assert get(server, "/healthz")[0] == 200
    server.close()
    server.close()
    assert running(THREADS) <= before
    with server:
        assert get(server, "/healthz")[0] == 200
    assert running(THREADS) <= before


def hold(listener: HttpListener) -> socket.socket:
    """A client that never ends its request."""
    client = socket.create_connection(("127.0.0.1", listener.port))
    client.sendall(b"GET / HT")
    return client


def test_clients_that_hold_their_connection_take_a_bounded_number_of_threads_and_do_not_delay_the_end() -> None:
    before = running(THREADS)
    # Only the end cuts them off.
    server = HttpListener("127.0.0.1", 0, {}, request_seconds=60.0, idle_seconds=60.0)
    server.start()
    with ExitStack() as stack:
        for _ in range(MOST_REQUESTS + 20):
            stack.enter_context(hold(server))
        wait_until(lambda: len(running(THREADS) - before) > MOST_REQUESTS, 20, "threads")
        assert len(running(THREADS) - before) == MOST_REQUESTS + 1
        started = time.monotonic()
        server.close()
        wait_until(lambda: running(THREADS) <= before, 20, "the end of the threads that were cut off")
        assert time.monotonic() - started < 20


def test_a_client_that_drips_is_cut_off() -> None:
    server = HttpListener("127.0.0.1", 0, {}, request_seconds=0.4)
    server.start()
    with closing(server), hold(server) as client:
        started = time.monotonic()
        with suppress(OSError):
            while time.monotonic() - started < 30:
                client.sendall(b"x")
                time.sleep(0.05)
        assert time.monotonic() - started < 20
        with hold(server) as second_client:
            second_client.sendall(b"TP/1.0\r\nHost: localhost\r\n\r\n")
            assert second_client.makefile("rb").readline().split()[1] == b"404"


def test_a_port_that_is_taken_is_said(server: MetricsServer) -> None:
    port = urlsplit(server.url).port or 0
    with pytest.raises(OptionError, match=f"cannot listen on 127.0.0.1:{port}.*Choose another port"):
        MetricsServer(port).start()


def test_it_travels_as_its_settings() -> None:
    with MetricsServer(0, ready_seconds=5) as server:
        copy = pickle.loads(pickle.dumps(server))
    assert (copy.port, copy.host, copy.ready_seconds, copy.url) == (0, "127.0.0.1", 5, "")


def test_without_prometheus_client_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("prometheus_client")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "starrocks_txn_sink.metrics.exposition", raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(OptionError, match=r"pip install 'starrocks-txn-sink\[metrics\]'"):
        MetricsServer(0)


def test_sinks_with_the_same_port_share_an_endpoint() -> None:
    assert shared_server(9999) is shared_server(9999)
    assert shared_server(9999) is not shared_server(9998)
    assert shared_server(0) is not shared_server(0)


@pytest.mark.parametrize("port", [-1, 65536, "http", True, 1.5])
def test_a_wrong_port_is_refused(port: object) -> None:
    with pytest.raises(OptionError, match="metrics_port"):
        SinkOptions(load_url="http://fe:8030", database="d", delivery="at-least-once", metrics_port=port)  # type: ignore[arg-type]


@pytest.mark.deep
def test_the_wheel_has_the_page_and_the_runbook(tmp_path: Path) -> None:
    program = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
    root = Path(__file__).parents[3]
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=root, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    folder = "starrocks_txn_sink/metrics/page/"
    names = {name.removeprefix(folder) for name in zipfile.ZipFile(wheel).namelist() if name.startswith(folder)}
    assert names == set(ASSETS)
