"""A backend's context of one (label, table): one load at a time, the first load's parameters pinned ( 4.4–4.8)."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starrocks_emulator.settings import JSON_PAYLOAD_LIMIT, Limits
from starrocks_emulator.transactions.request import Request

_MEBIBYTE = 1024 * 1024
_FORMATS = frozenset({"csv", "json", "gzip", "bzip2", "lz4", "deflate", "zstd"})


class LoadRefused(Exception):
    """A load that the backend does not take; `status` is a TStatusCode name."""

    def __init__(self, status: str, message: str) -> None:
        self.status = status
        self.message = message
        super().__init__(message)


@dataclass(slots=True)
class LoadContext:
    """Opened by the frontend at the table's first load. `busy` is held by the one operation at work on the context."""

    label: str
    database: str
    table: str
    txn_id: int
    properties: Mapping[str, str]
    plan: Any
    busy: threading.Lock = field(default_factory=threading.Lock)
    files: list[Path] = field(default_factory=list)
    announced_bytes: int = 0
    received_bytes: int = 0
    failed: bool = False
    closed: bool = False

    @property
    def format(self) -> str:
        return self.properties.get("format", "csv").lower() or "csv"

    @property
    def streams_pieces(self) -> bool:
        """True when a body reaches the pipe piece by piece (CSV); JSON waits for its whole body."""
        return self.format != "json"

    def admit(self, request: Request, length: int | None, limits: Limits) -> None:
        """Check one load's headers against the context; any refusal fails the context for good.

        `length` is the announced body size, None when the body is chunked. Raises `LoadRefused`.
        """
        if self.failed:
            raise LoadRefused("ABORTED", "current transaction is aborted")
        try:
            self._check_size(length, limits)
            self._check_format(request)
            self._check_json_size(request, limits)
            if request.load_properties() != dict(self.properties):
                raise LoadRefused("INTERNAL_ERROR", "load request not equal last.")
        except LoadRefused:
            self.failed = True
            raise

    def check_received(self, limits: Limits, this_load: int) -> None:
        """The same limits for bodies whose size only their bytes tell. Raises `LoadRefused`."""
        total, limit = self.received_bytes + this_load, limits.streaming_load_max_mb * _MEBIBYTE
        if total > limit:
            raise self._too_large(total, limit)
        if this_load >= JSON_PAYLOAD_LIMIT and not self.streams_pieces:
            raise LoadRefused(
                "MEM_LIMIT_EXCEEDED",
                f"payload size [{this_load}] of single write beyond the JSON payload limit [{JSON_PAYLOAD_LIMIT}]",
            )

    def _check_size(self, length: int | None, limits: Limits) -> None:
        self.announced_bytes += length or 0
        limit = limits.streaming_load_max_mb * _MEBIBYTE
        if self.announced_bytes > limit:
            raise self._too_large(self.announced_bytes, limit)

    def _too_large(self, size: int, limit: int) -> LoadRefused:
        return LoadRefused(
            "INTERNAL_ERROR",
            f"body size {size} exceed limit: {limit}, label={self.label}, txn_id={self.txn_id}. "
            "You can increase the limit by setting streaming_load_max_mb in be.conf.",
        )

    def _check_format(self, request: Request) -> None:
        named = request.header("format").lower()
        if not named and self.format != "csv":
            raise LoadRefused(
                "INTERNAL_ERROR",
                "stream load context's format is not default format TFileFormatType::FORMAT_CSV_PLAIN",
            )
        if named and named != self.format:
            raise LoadRefused(
                "INTERNAL_ERROR", "stream load context's format is not same as format from cur http header"
            )
        if named and named not in _FORMATS:
            raise LoadRefused("INTERNAL_ERROR", f"unknown data format, format={request.header('format')}")

    def _check_json_size(self, request: Request, limits: Limits) -> None:
        limit = limits.streaming_load_max_batch_size_mb * _MEBIBYTE
        ignored = request.header("ignore_json_size").lower() == "true"
        if self.format == "json" and not ignored and self.announced_bytes > limit:
            raise LoadRefused(
                "INTERNAL_ERROR",
                f"The size of this batch exceed the max size [{limit}]  of json type data  data "
                f"[ {self.announced_bytes} ]. Set ignore_json_size to skip the check, although it may lead huge "
                "memory consuming.",
            )
