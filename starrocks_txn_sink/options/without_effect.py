"""Options that change nothing in some circumstances, as data: each with the reason.

`SinkOptions.without_effect` finds those that a user has set, and `warn_of` logs each as `option.without_effect`. A
table of docs/reference/options.md is generated from the same data.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from starrocks_txn_sink.telemetry import LatestValues, get_logger

_log = get_logger("options")
_warned = LatestValues[tuple[str, str], bool](1000)  # (run of a query, option): a run has a session after each failure


class Circumstance(Enum):
    """A circumstance of a write; the value is its title on the page."""

    NO_QUERY_URL = "no `query_url`"
    NO_LEDGER = "no ledger (`delivery` at-least-once, or no `query_url`)"
    NO_QUARANTINE = "`on_bad_rows` fail"
    NO_RECEIPTS_LOG = "no `receipts_log`"
    UNJUDGED = "`check_values` off"
    NO_NEW_TABLES = "`schema_changes` not apply"
    NO_METRICS_PORT = "no `metrics_port`"
    ROWS = "rows (no raw events)"
    JSON_TEXTS = "JSON texts (no `routes`)"
    ARRIVAL_ORDER = "lanes that take rows in arrival order, and do not read Kafka"
    UNPOSITIONED = "rows without positions"
    PROVED = "whole transactions that one lane proves by counts (Debezium's)"
    DATA_SOURCE = "the data source"
    KAFKA_READER = "lanes that read Kafka (`reader` librdkafka)"


@dataclass(frozen=True, slots=True)
class WithoutEffect:
    """`option` changes nothing where all circumstances `when` hold, and `why`."""

    when: tuple[Circumstance, ...]
    option: str
    why: str


_OPTIONS: Final[Mapping[tuple[Circumstance, ...], Mapping[str, str]]] = {
    (Circumstance.NO_QUERY_URL,): {
        "query_tls": "there is no query_url",
        "check_values": "the sink reads the types of columns over SQL, and there is no query_url",
        "find_leader": "the sink asks for the leader over SQL, and there is no query_url",
        "allow_unreleased_server": "the sink reads the server's version over SQL, and there is no query_url",
        "compact": "the sink reads the primary keys over SQL, and there is no query_url, so it sends all rows anyway",
    },
    (Circumstance.NO_LEDGER, Circumstance.ROWS): {"check_replays": "without a ledger replays are not known"},
    (Circumstance.NO_LEDGER, Circumstance.NO_QUARANTINE): {
        "ledger_create": "neither a ledger nor a dead-letter table is needed",
    },
    (
        Circumstance.NO_LEDGER,
        Circumstance.NO_QUARANTINE,
        Circumstance.NO_RECEIPTS_LOG,
        Circumstance.NO_NEW_TABLES,
    ): {"ledger_replication": "the sink creates no table"},
    (Circumstance.JSON_TEXTS, Circumstance.UNJUDGED): {
        "timestamp_zone": "JSON texts are sent unchanged, because check_values is off"
    },
    (Circumstance.NO_QUARANTINE,): {"max_quarantined": "on_bad_rows is not quarantine, so a rejected row ends the job"},
    (Circumstance.NO_RECEIPTS_LOG,): {"receipts_log_days": "receipts_log is off"},
    (Circumstance.NO_METRICS_PORT,): {"metrics_host": "metrics_port is not set"},
    (Circumstance.ARRIVAL_ORDER,): {
        "commit_interval": "lanes that take rows in arrival order read a micro-batch to its end, and the trigger "
        "decides how often one ends; lanes of sorted rows (shuffle=True) and lanes that read Kafka stop in between",
    },
    (Circumstance.UNPOSITIONED,): {
        "commit_interval": "rows without positions are committed at the end of a micro-batch: nothing says where the "
        "next StarRocks transaction would go on",
        "compact": "rows without positions have no order, so all of them are sent anyway",
    },
    (Circumstance.PROVED,): {
        "lanes": "one lane reads and assembles all messages",
        "shuffle": "the lane takes messages in any order",
    },
    (Circumstance.DATA_SOURCE,): {
        "freshness": "none of its processes outlives a write, so the query's trigger sets the pace",
        "lanes": "the tasks of the frame are the lanes",
        "metrics_port": "none of its processes outlives a write",
        "shuffle": "the frame is written in any order",
        "max_attempts": "the frame is written in one attempt: its rows cannot be read again",
    },
    (Circumstance.KAFKA_READER,): {"shuffle": "a lane reads its source partitions in order; Spark sees no rows"},
}

WITHOUT_EFFECT: Final = tuple(
    WithoutEffect(when, option, why) for when, options in _OPTIONS.items() for option, why in options.items()
)
"""Every option without effect, by its circumstances."""


def circumstances_of_rows(*, routed: bool, positioned: bool) -> tuple[Circumstance, ...]:
    """The circumstances of rows, with typed columns if `routed`; `positioned` ones belong to source transactions."""
    texts = () if routed else (Circumstance.JSON_TEXTS,)
    return (Circumstance.ROWS, *texts, *(() if positioned else (Circumstance.UNPOSITIONED,)))


def options_without_effect(circumstances: Collection[Circumstance]) -> Iterator[WithoutEffect]:
    """The options that change nothing in `circumstances`; a name may come twice."""
    return (option for option in WITHOUT_EFFECT if set(option.when).issubset(circumstances))


def warn_of(idle: Mapping[str, str], run: str = "") -> None:
    """Log a warning for each option of `idle`, with the reason; of a `run` of a query once in this process."""
    for option, why in idle.items():
        if run and (run, option) in _warned:
            continue
        _warned[run, option] = True
        _log.warning("option.without_effect", option=option, why=why)
