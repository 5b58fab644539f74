"""Every event of the package, declared once: its name, who writes its log line, at which level, and its meaning.

`telemetry.Event` accepts no other name. The log's levels, docs/operations/logs.md and the tests are made from it. A
name is `noun.verb`. A meaning is text for readers of the log, in Markdown as seen from docs/operations.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final


@dataclass(frozen=True, slots=True)
class EventKind:
    """An event: `level` of its log line, None for events that only listeners and metrics get; the `loggers` write it.

    A warning or error that repeats is written once in `telemetry.REPEAT_SECONDS`, unless it is `unlimited`, because
    each one names another loss.
    """

    level: int | None
    loggers: tuple[str, ...]
    name: str
    meaning: str
    unlimited: bool = False


def _kinds(level: int | None, *loggers: str, unlimited: bool = False, **meanings: str) -> Iterable[EventKind]:
    """Kinds by name, where `__` in a name stands for its dot."""
    make = partial(EventKind, level, loggers, unlimited=unlimited)
    return (make(name.replace("__", "."), meaning) for name, meaning in meanings.items())


_ALL: Final = (
    # a micro-batch
    *_kinds(
        logging.ERROR,
        "sink",
        unlimited=True,
        batch__failed="a micro-batch failed, with the `code` of its error",
    ),
    *_kinds(
        logging.WARNING,
        "sink",
        unlimited=True,
        rows__dead_lettered="source transactions with rejected rows went to the dead-letter table: by table `rows`, "
        "`place`, and `source_transactions` ([dead-letters.md](../guides/dead-letters.md))",
    ),
    *_kinds(
        logging.INFO,
        "sink",
        session__opened="the driver has taken the job over",
        batch__completed="a micro-batch succeeded: seconds, StarRocks transactions (`receipts`), visible and "
        "dead-lettered rows and source transactions",
        batch__stopped="a micro-batch ended because its query is being stopped",
        schema__changed="the sink has altered or created a `table` (`schema_changes`), with this `statement`",
        snapshot__progressed="rows of the source's first snapshot are visible: how many of its `tables` are `over`, "
        "which since this commit (`tables_over`, [what a reader sees](../guides/snapshots.md))",
        snapshot__ended="the last row of the source's first snapshot is visible",
    ),
    *_kinds(
        logging.DEBUG,
        "sink",
        sink__made="a sink was made: version, Spark's version, `buffer_bytes`, `timeout`",
        batch__started="a micro-batch begins, with the number of lanes",
        batch__traceback="the Python traceback of a failed micro-batch",
        receipt__collected="a StarRocks transaction is visible: label, counts, attempts, retries",
        lane__reported="a lane's counts arrived",
        assembler__counted="an assembling stage's counts arrived",
    ),
    # the steps of a StarRocks transaction
    *_kinds(logging.WARNING, "lane", "sink", step__failed="a step failed, with the `code` of its error"),
    *_kinds(
        logging.DEBUG,
        "lane",
        "sink",
        step__ended="begin, load (each body), check, commit, recover or rollback ended",
    ),
    *_kinds(
        None,
        step__started="a step begins",
        step__completed="a step ended; its line is `step.ended`",
        request__started="a request is sent",
        request__completed="a reply came",
        request__failed="no reply came",
    ),
    # StarRocks does not answer
    *_kinds(
        logging.WARNING,
        "sink",
        outage__waiting="StarRocks cannot serve, so the driver waits (a line each 30 s, with the error's `code`)",
    ),
    *_kinds(logging.INFO, "sink", outage__ended="StarRocks can serve again, and the micro-batch is written"),
    *_kinds(logging.DEBUG, "sink", outage__met="a try at a micro-batch failed because StarRocks cannot serve"),
    # a table is changed
    *_kinds(
        logging.WARNING,
        "sink",
        schema__waiting="StarRocks changes a `table` in the background, and the sink waits for it",
    ),
    # wrong data
    *_kinds(logging.ERROR, "sink", integrity__violated="the auditor saw a torn read"),
    *_kinds(
        logging.WARNING,
        "sink",
        audit__failed="a sample could not be taken; it is no violation",
        label__unlisted="a take-over would not find this run's labels "
        "([Integrity violated](runbook.md#alert-integrity-violated))",
        replay__skipping="rows are left out as written, up to a position that the source has not reached yet",
    ),
    # tables and rows
    *_kinds(
        logging.WARNING,
        "sink",
        columns__unknown="JSON rows name columns that their table lacks, with `schema_changes` ignore "
        "([Unknown columns](runbook.md#alert-unknown-columns))",
        columns__gone="columns that a table's JSON rows used to name and no row of a micro-batch names: they are "
        "NULL there",
        columns__unfilled="the sink has added `columns` that have a DEFAULT at the source or are NOT NULL: earlier "
        "rows have NULL until they change",
        loops__missing="the driver has no [compiled loops](../guides/performance.md#compiled-loops)",
        deletes__unfilled="deletes carry only their key, and there is no `query_url` "
        "([debezium.md](../guides/debezium.md#tables))",
    ),
    *_kinds(
        logging.WARNING,
        "sink",
        rules__unmatched="a rule of TableRules names a `column` that none of its `tables` has yet",
    ),
    *_kinds(
        logging.INFO,
        "sink",
        columns__waiting="columns that a table lacks have only NULL so far; they are added with their first value",
        columns__unnamed="columns without a default that none of a table's first JSON rows names; they are NULL",
        compact__skipped="[`compact`](../guides/compact.md) is on, but all rows of a table are sent, and `why`",
    ),
    # how rows reach their lanes
    *_kinds(
        logging.WARNING,
        "sink",
        lanes__repeated="the task of a `lane` ended early, so the lanes run again "
        "([Error `lane_died`](errors/lane_died.md))",
        rows__sorted="rows were out of order, or their label got too old: Spark sorts them first from now on, `why`",
        source__slow="once a query: Spark's Kafka source polls 500 records at a time "
        "([sources.md](../guides/sources.md#larger-polls))",
    ),
    *_kinds(
        logging.WARNING,
        "assembler",
        events__sorted="Spark sorts the events before their lanes, and `why` "
        "([assembling.md](../guides/assembling.md))",
        events__malformed='`count` values are no event, and were left out (`on_malformed="drop"`)',
    ),
    # source transactions that are not written
    *_kinds(
        logging.WARNING,
        "sink",
        transaction__open="a source transaction has been open for a minute (then after 2, 4, 8 … minutes), with its "
        "place",
    ),
    *_kinds(
        logging.WARNING,
        "sink",
        "assembler",
        unlimited=True,
        transaction__abandoned="the next source transaction of its source partition began before its end",
        transaction__without_begin='the BEGIN was never seen, so the rows were dropped (`missing_begin="drop"`)',
        transaction__timed_out='the END did not come, so the rows were dropped (`on_open_timeout="drop"`)',
        transaction__waiting="a transaction of Debezium has not added up for a minute, with its counts by table",
        transaction__quarantined="a transaction of Debezium did not add up within `open_timeout`, and was given up",
        source__repeated="a source partition repeats events that are too old to be compared: its source may be "
        "another one ([Error `source_changed`](errors/source_changed.md))",
        transaction__late="events of a transaction came after it was given up",
        truncate__ignored="the source has emptied a `table`, which [keeps its rows](../guides/debezium.md#truncate)",
    ),
    *_kinds(
        logging.INFO,
        "sink",
        "assembler",
        round__ended="the label of a micro-batch got old, so its rows so far were committed "
        "([rounds](../guides/exactly-once.md#is-my-micro-batch-atomic))",
    ),
    *_kinds(
        logging.INFO,
        "assembler",
        assembler__planned="an assembling stage was planned, with its state operator",
    ),
    # a checkpoint
    *_kinds(
        logging.DEBUG,
        "assembler",
        checkpoint__not_found="this process cannot see the query's checkpoint location",
    ),
    *_kinds(
        logging.DEBUG,
        "continuity",
        proof__not_read="a file of the checkpoint with a micro-batch's positions could not be read",
        proof__not_written="such a file could not be written",
    ),
    # queries and their sources
    *_kinds(logging.INFO, "supervisor", query__restarting="`run_forever` starts the query again after `seconds`"),
    *_kinds(
        logging.WARNING,
        "supervisor",
        query__stop_hangs="the query did not stop within `seconds`, and `run_forever` went on without it",
    ),
    *_kinds(
        None,
        query__started="Spark has started a query",
        query__progressed="Spark's progress report of a query",
        query__idle="a query has nothing to do",
        query__ended="a query ended",
        source__lagged="the rows that wait in Kafka were counted",
        source__unknown="Kafka did not say how many rows wait",
        server__measured="the running transactions of the database and the server's limit were read, or could not be",
        tablets__measured="the same for the rowsets of the tablets of each table",
    ),
    *_kinds(
        logging.WARNING,
        "kafka",
        kafka__waiting="a `request` to Kafka failed, and its `reason`; it is sent again until the patience ends",
    ),
    *_kinds(
        logging.WARNING,
        "lineage",
        lineage__lost="an event of OpenLineage was not sent, with the reason (`why`); the job goes on",
    ),
    # changelogs
    *_kinds(
        logging.WARNING,
        "changelog",
        unlimited=True,
        change__skipped="an event was left out, with its `place` and `why`",
        changes__skipped="so many `more` events of the same rows were left out",
    ),
    *_kinds(
        logging.INFO,
        "changelog",
        retractions__swallowed="`count` retractions met no row of their key and had no effect",
        retractions__waiting="a micro-batch ended with `count` -U of one key that wait for their +U",
    ),
    # the process
    *_kinds(
        logging.WARNING,
        "options",
        unlimited=True,
        option__without_effect="an option that you set changes nothing, and `why`",
    ),
    *_kinds(logging.WARNING, "metrics", metrics__broken="the metrics endpoint could not start, and `why`"),
)

EVENTS: Final[Mapping[str, EventKind]] = {kind.name: kind for kind in _ALL}
"""Each event by its name, in the order of the page."""
