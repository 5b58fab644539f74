"""All checks, section after section. An error that ends a section becomes a finding, and the next section runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from starrocks_txn_sink.doctor import frontends, server, transaction
from starrocks_txn_sink.doctor.executors import check_executors
from starrocks_txn_sink.doctor.finding import Finding, failure, skipped
from starrocks_txn_sink.doctor.libraries import installed_versions, java_version, judge_java, judge_libraries
from starrocks_txn_sink.doctor.patient import SectionSkipped, Target
from starrocks_txn_sink.doctor.privileges import check_privileges
from starrocks_txn_sink.doctor.reach import DRIVER
from starrocks_txn_sink.doctor.tables import check_tables
from starrocks_txn_sink.errors import StarRocksSinkError

Section = Callable[[Target], Iterator[Finding]]


def check_libraries(target: Target) -> Iterator[Finding]:
    """Check Python, libraries and JDK of this process. With Spark, `check_executors` reports the JDK in use."""
    yield from judge_libraries(installed_versions(), DRIVER)
    if target.executors is None:
        yield judge_java(java_version(os.environ.get("JAVA_HOME")), DRIVER)


SECTIONS: tuple[tuple[str, Section], ...] = (
    ("libraries", check_libraries),
    ("addresses", frontends.check_addresses),
    ("server version", server.check_version),
    ("frontends", frontends.check_members),
    ("leader", frontends.check_leader),
    ("clock", server.check_clock),
    ("transaction", transaction.check_empty_transaction),
    ("tables", check_tables),
    ("backends", transaction.check_backends),
    ("privileges", check_privileges),
    ("limits", server.check_limits),
    ("executors", check_executors),
)
"""In order of dependence: later sections use the version, leader, tables and endpoints that earlier ones found."""


def examine(target: Target, sections: tuple[tuple[str, Section], ...] = SECTIONS) -> Iterator[tuple[str, Finding]]:
    """Yield (section name, finding) as soon as each is known. Errors of the server become findings."""
    for name, section in sections:
        try:
            for finding in section(target):
                yield name, finding
        except SectionSkipped as reason:
            yield name, skipped(name, f"not checked: {reason}")
        except StarRocksSinkError as error:
            yield (
                name,
                failure(
                    name,
                    error.message,
                    "The section ended early, so later checks of it did not run.",
                    error.advice or "Solve the findings above first.",
                ),
            )
