"""Settings of an emulator at its start: generation, credentials, limits; names and defaults are the server's own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum


class EmulatorError(Exception):
    """Root of the emulator's own errors; the message ends in what you can do."""


class SettingError(EmulatorError, ValueError):
    """A setting or a fault plan that cannot be; the message names the field and what is allowed."""


JSON_PAYLOAD_LIMIT = 4_294_967_296
"""Bytes of one JSON body that no setting can raise (wire contract 2.5)."""

FRONTEND_BODY_LIMIT = 6_553_600
"""Bytes of a body the frontend is ready to swallow (wire contract 1.1)."""


class Generation(Enum):
    """Server generations of multi mode that the emulator can play (wire contract 10.1)."""

    B = "B"
    C = "C"

    @property
    def version(self) -> str:
        """What `current_version()` answers: the oldest release of B, a patch of 4.1 that is taken for C."""
        return "4.0.7-emulator" if self is Generation.B else "4.1.5-emulator"


class RowOrder(Enum):
    """How rows of one key inside one transaction follow each other."""

    ARRIVAL = "arrival"
    ARBITRARY = "arbitrary"


@dataclass(frozen=True, slots=True)
class Limits:
    """Server configuration with the server's names; seconds, counts and megabytes (wire contract 3.3, 4.13, 5.9).

    `query_timeout` is how long generation B keeps what a commit has rolled back silently (10.7), and its second clock
    (4.12), if `Settings.second_clock` says so. `default_replication_num` None is a server's 3 with as many
    backends, and 1 with fewer, as the all-in-one image sets it (10.8).
    The timeouts of transactions of one table are `stream_load_default_timeout_second` and, once they are prepared,
    `prepared_transaction_default_timeout_second` (3.1).
    """

    label_keep_max_num: int = 1000
    label_keep_max_second: float = 259_200
    stream_load_task_keep_max_num: int = 1000
    stream_load_task_keep_max_second: float = 259_200
    label_clean_interval_second: float = 14_400
    transaction_clean_interval_second: float = 30
    max_running_txn_num_per_db: int = 1000
    streaming_load_max_mb: int = 102_400
    streaming_load_max_batch_size_mb: int = 100
    default_timeout_second: float = 20
    query_timeout: float = 300
    stream_load_default_timeout_second: float = 600
    prepared_transaction_default_timeout_second: float = 86_400
    default_replication_num: int | None = None
    max_load_initial_open_partition_number: int = 32


@dataclass(frozen=True, slots=True)
class Settings:
    """One emulator. Ports of 0 are chosen by the system; `backends` and `followers` count listeners;
    a follower's query port shows an older state until `catch_up`.

    `row_order` says how rows of one key inside one transaction follow each other; the server promises nothing.
    `cores` are those of each backend, which has scan threads by them (wire contract 4.16).
    `alter_seconds`: MODIFY COLUMN takes so long, in the background; a server's takes two ticks of 10 s and the rewrite.
    `second_clock`: in generation B a transaction that is open for `query_timeout` fails at its commit, which a
    frontend of 4.1.1 was not seen to do (wire contract 4.12).
    `planning_seconds`: a table's first load takes so long to plan; other first loads collide with it meanwhile (4.5).
    `log_seconds`: a query of load_tracking_logs by label takes so long for each row without a log (5.10).
    `loads_stay_preparing`: information_schema.loads shows the loads of committed labels as PREPARING forever, as
    releases before 4.1.3 do (wire contract 4.15).
    """

    generation: Generation = Generation.B
    user: str = "root"
    password: str = ""
    host: str = "127.0.0.1"
    fe_port: int = 0
    be_port: int = 0
    query_port: int = 0
    backends: int = 1
    followers: int = 0
    limits: Limits = field(default_factory=Limits)
    row_order: RowOrder = RowOrder.ARRIVAL
    row_order_seed: int = 0
    loads_stay_preparing: bool = False
    alter_seconds: float = 0.2
    second_clock: bool = False
    cores: int = 2
    planning_seconds: float = 0.001
    log_seconds: float = 2.0


class Configuration:
    """Settings of running servers, for all their parts: ADMIN SET FRONTEND CONFIG replaces `limits`, and UPDATE of
    information_schema.be_configs changes `of_backends`, by name: value, type, and whether it can be changed."""

    def __init__(self, settings: Settings) -> None:
        self.limits = settings.limits
        self._replicas = 3 if settings.backends >= 3 else 1
        self._rest = dict(_CONFIGURATION)
        self.of_backends = dict(_OF_BACKENDS)

    @property
    def shown(self) -> Mapping[str, tuple[str, str, bool]]:
        """Value, type and whether it can be changed of each setting that ADMIN SHOW FRONTEND CONFIG knows."""
        return {
            **self._rest,
            **{name: (_number(getattr(self.limits, name)), "int", True) for name in _CHANGEABLE},
            **{name: (_number(getattr(self.limits, name)), "int", False) for name in _FIXED},
            "default_replication_num": (self.default_replicas, "short", True),
        }

    @property
    def scan_threads_per_core(self) -> int:
        """Threads of a backend's core that read loads and scans (wire contract 4.16)."""
        return int(self.of_backends[SCAN_THREADS][0])

    @property
    def key_limit(self) -> int:
        """Most bytes of a primary key (wire contract 4.7)."""
        return int(self.of_backends[KEY_LIMIT][0])

    def change_backends(self, name: str, text: str) -> None:
        """Change one setting of all backends from now on; raises SettingError."""
        _, kind, mutable = self.of_backends.get(name, ("", "", False))
        if not mutable:
            raise SettingError(f"Config '{name}' does not exist or is not mutable")
        if re.fullmatch(r"[0-9]{1,9}", text) is None:
            raise SettingError(f"Config '{name}' wants a value of the type {kind}, not '{text}'")
        self.of_backends[name] = (text, kind, mutable)

    @property
    def default_replicas(self) -> str:
        """Replicas of a table whose DDL does not say: by the setting, else as the number of backends allows."""
        return str(self.limits.default_replication_num or self._replicas)

    def change(self, name: str, text: str) -> None:
        """Change one setting from now on; raises SettingError."""
        _, kind, mutable = self.shown.get(name, ("", "", False))
        if not mutable:
            raise SettingError(f"Config '{name}' does not exist or is not mutable")
        fits = text.lower() in ("true", "false") if kind == "boolean" else re.fullmatch(r"-?[0-9]{1,18}", text)
        if not fits:
            raise SettingError(f"Config '{name}' wants a value of the type {kind}, not '{text}'")
        if name in {limit.name for limit in fields(Limits)}:
            self.limits = replace(self.limits, **{name: int(text)})
        else:
            self._rest[name] = (text, kind, mutable)


_CHANGEABLE = (
    *("label_keep_max_num", "label_keep_max_second", "stream_load_task_keep_max_num", "max_running_txn_num_per_db"),
    *("stream_load_task_keep_max_second", "stream_load_default_timeout_second"),
    *("prepared_transaction_default_timeout_second", "max_load_initial_open_partition_number"),
)
_FIXED = ("label_clean_interval_second", "transaction_clean_interval_second")
_CONFIGURATION = {
    "max_stream_load_timeout_second": ("259200", "int", True),
    "min_load_timeout_second": ("1", "int", True),
    "max_stream_load_batch_size_mb": ("100", "int", True),
    "stream_load_max_txn_num_per_be": ("-1", "int", True),
    "empty_load_as_error": ("true", "boolean", True),
    "enable_experimental_rowstore": ("false", "boolean", True),
    "http_max_initial_line_length": ("4096", "int", False),
    "http_max_header_size": ("32768", "int", False),
    "http_backlog_num": ("1024", "int", False),
    "qe_max_connection": ("4096", "int", False),
    "ssl_force_secure_transport": ("false", "boolean", False),
}
"""Settings of a frontend that nothing here depends on, as a frontend of 4.1 shows them."""
SCAN_THREADS = "pipeline_connector_scan_thread_num_per_cpu"
KEY_LIMIT = "primary_key_limit_size"
_OF_BACKENDS = {
    KEY_LIMIT: ("128", "int", True),
    SCAN_THREADS: ("8", "int", True),
    "tablet_max_versions": ("1000", "int", True),
}
"""Settings of a backend, with the values of 4.1.1."""


def _number(value: float) -> str:
    return f"{value:g}" if value % 1 else str(int(value))
