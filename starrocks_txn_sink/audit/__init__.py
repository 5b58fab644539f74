"""The torn-read auditor: evaluates a user's invariant over several tables repeatedly while a job writes.

The invariant is one statement, and one statement reads one snapshot; so it shows a source transaction that is visible
in part.
"""

from starrocks_txn_sink.audit.invariant import Audit

__all__ = ["Audit"]
