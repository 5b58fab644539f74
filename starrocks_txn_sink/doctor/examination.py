"""The whole examination: section after section; what keeps one from being done is a finding too."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from starrocks_txn_sink.doctor import frontends, server, transaction
from starrocks_txn_sink.doctor.executors import executors
from starrocks_txn_sink.doctor.finding import Finding, failure, skipped
from starrocks_txn_sink.doctor.libraries import installed, java_version, judge_java, judge_libraries
from starrocks_txn_sink.doctor.patient import NotAsked, Patient
from starrocks_txn_sink.doctor.privileges import privileges
from starrocks_txn_sink.doctor.reach import DRIVER
from starrocks_txn_sink.doctor.tables import tables
from starrocks_txn_sink.errors import StarRocksSinkError

Section = Callable[[Patient], Iterator[Finding]]


def libraries(patient: Patient) -> Iterator[Finding]:
    """This process: its Python, libraries and JDK; a Spark job tells the JDK that it really runs on."""
    yield from judge_libraries(installed(), DRIVER)
    if patient.executors is None:
        yield judge_java(java_version(os.environ.get("JAVA_HOME")), DRIVER)


SECTIONS: tuple[tuple[str, Section], ...] = (
    ("libraries", libraries),
    ("addresses", frontends.addresses),
    ("server version", server.version),
    ("frontends", frontends.members),
    ("leader", frontends.leading),
    ("clock", server.clock),
    ("transaction", transaction.empty_transaction),
    ("tables", tables),
    ("backends", transaction.backends),
    ("privileges", privileges),
    ("limits", server.limits),
    ("executors", executors),
)
"""In the order in which later sections need earlier ones."""


def examine(patient: Patient, sections: tuple[tuple[str, Section], ...] = SECTIONS) -> Iterator[tuple[str, Finding]]:
    """Yield each finding with its section's name, as soon as it is there; raises nothing of the server's doing."""
    for name, section in sections:
        try:
            for finding in section(patient):
                yield name, finding
        except NotAsked as reason:
            yield name, skipped(name, f"not looked at: {reason}")
        except StarRocksSinkError as error:
            yield (
                name,
                failure(
                    name,
                    error.message,
                    "The section could not be examined to its end.",
                    error.advice or "See what the findings before this one say.",
                ),
            )
