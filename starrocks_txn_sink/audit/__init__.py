"""The torn-read auditor: a user's invariant over several tables, asked in one statement again and again while a job
writes. One statement is one snapshot, so a source transaction that became visible in part would show."""

from starrocks_txn_sink.audit.invariant import Audit

__all__ = ["Audit"]
