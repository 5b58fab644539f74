"""The doctor's Spark job: executors knock on doors of their own and say what they have installed."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest
from pyspark.sql import SparkSession

from starrocks_txn_sink.doctor.executors import executors
from starrocks_txn_sink.doctor.finding import Severity
from starrocks_txn_sink.doctor.patient import Patient
from starrocks_txn_sink.doctor.reach import Door
from starrocks_txn_sink.options import SinkOptions

pytestmark = pytest.mark.spark


def test_executors_tell_what_they_reach_and_have(spark: SparkSession) -> None:
    options = SinkOptions(load_url="http://127.0.0.1:1", database="shop", delivery="at-least-once")
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        doors = [Door("frontend", *listening.getsockname()), Door("backend", *closed.getsockname())]
        patient = Patient(options, None, executors=2, doors=doors)
        with closing(patient):
            found = list(executors(patient))
    assert spark.range(1).count() == 1  # a session that is not the doctor's stays
    bad = [one for one in found if one.severity is Severity.FAILURE]
    assert [(one.check, one.place.startswith("executor on ")) for one in bad] == [("port", True)]
    assert str(doors[1]) in bad[0].what
    names = {one.check for one in found if one.severity is Severity.GOOD}
    assert {"library.java", "library.pandas", "executor.clock", "port", "executor.spark"} <= names


def test_a_session_that_cannot_be_had_is_a_finding(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("JAVA_GATEWAY_EXITED\nand more")

    monkeypatch.setattr(type(spark), "getActiveSession", broken)
    options = SinkOptions(load_url="http://127.0.0.1:1", database="shop", delivery="at-least-once")
    (found,) = executors(Patient(options, None))
    assert (found.check, found.severity) == ("executor.spark", Severity.FAILURE)
    assert "JAVA_GATEWAY_EXITED" in found.what
    assert "and more" not in found.what
