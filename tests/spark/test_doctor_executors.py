"""The doctor's Spark job: executors probe the endpoints themselves and list their libraries."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest
from pyspark.sql import SparkSession

from starrocks_txn_ops.doctor.executors import check_executors
from starrocks_txn_ops.doctor.target import ServerPort, Severity, Target
from starrocks_txn_sink.options import SinkOptions

pytestmark = pytest.mark.spark


def test_executors_tell_what_they_reach_and_have(spark: SparkSession) -> None:
    options = SinkOptions(load_url="http://127.0.0.1:1", database="shop", delivery="at-least-once")
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        endpoints = [
            ServerPort("frontend", *listening.getsockname()),
            ServerPort("backend", *closed.getsockname()),
        ]
        target = Target(options, None, executors=2, endpoints=endpoints)
        with closing(target):
            findings = list(check_executors(target))
    assert spark.range(1).count() == 1  # a session that is not the doctor's stays
    bad = [finding for finding in findings if finding.severity is Severity.FAILURE]
    assert [(finding.check, finding.place.startswith("executor on ")) for finding in bad] == [("port", True)]
    assert str(endpoints[1]) in bad[0].what
    names = {finding.check for finding in findings if finding.severity is Severity.GOOD}
    assert {"library.java", "library.pandas", "executor.clock", "port", "executor.spark"} <= names


def test_a_session_that_cannot_be_had_is_a_finding(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("JAVA_GATEWAY_EXITED\nand more")

    monkeypatch.setattr(type(spark), "getActiveSession", broken)
    options = SinkOptions(load_url="http://127.0.0.1:1", database="shop", delivery="at-least-once")
    (finding,) = check_executors(Target(options, None))
    assert (finding.check, finding.severity) == ("executor.spark", Severity.FAILURE)
    assert "JAVA_GATEWAY_EXITED" in finding.what
    assert "and more" not in finding.what
