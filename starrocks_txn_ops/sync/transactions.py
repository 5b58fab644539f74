"""Whether a connector's messages show what whole source transactions need, before a query reads them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_ops.doctor.server import checkpoint_age
from starrocks_txn_ops.doctor.target import Finding, Topic
from starrocks_txn_ops.sync.settings import Sync
from starrocks_txn_sink.assembler.rules import model
from starrocks_txn_sink.assembler.verified import intake
from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.sink.assembly import MessageAssembly
from starrocks_txn_sink.sink.schema.source_tables import KeyedMessage
from starrocks_txn_sink.sources.formats.raw_format import KEY, SOURCE_PARTITION, VALUE

_CHECK: Final = Topic("source.transactions")
_UNKNOWN: Final = (
    "not checked: no change after the snapshot shows yet whether the connector has provide.transaction.metadata=true, "
    'and the query needs it unless [source] has transactions = "none"'
)
_TOPICS: Final = r"Let topics match the transaction topic too, as in 'shop\.(public\..*|transaction)'."
_NO_MARKER: Final = (
    "Changes name their transactions, but no newest message is a transaction marker.",
    "The query writes a transaction once its rows match the counts of its END, and would wait for it.",
    _TOPICS,
)
_NOT_MATCHED: Final = (
    "topics does not match {}, to which the connector writes its transaction markers.",
    "The snapshot needs none; all later changes would wait for their markers.",
    f"{_TOPICS} If the connector's topic.transaction names another one, set transaction_topic in [source].",
)
_READ: Final = "The query begins with the oldest messages of the topics, and fails when it reads this change."
_PERHAPS_READ: Final = (
    "It is the newest change of its connector. The query fails at a change like it, but may be behind this one."
)


def needs_transactions(sync: Sync) -> bool:
    """Whether the query waits for a connector's markers of whole source transactions."""
    return sync.assembly.marker_topic is not None


def judge_transactions(sync: Sync, messages: Sequence[KeyedMessage]) -> Finding:
    """Judge Debezium's messages, the newest first, by the rule of the query, with its words.

    All of them count if the query reads them for certain. Otherwise the newest change of a connector does, and is no
    failure: a setting that came after it does not show.
    """
    events = _events(sync.assembly, messages)
    markers = pc.is_valid(events[intake.STATUS])
    changes = events.filter(pc.and_(pc.invert(markers), pc.not_equal(events[model.OP], intake.SNAPSHOT)))
    has_markers = pc.any(markers).as_py()
    if not changes.num_rows and not has_markers:
        topic = _unmatched_topic(sync, events)
        what, why, advice = _NOT_MATCHED
        return _CHECK.warning(what.format(topic), why, advice) if topic else _CHECK.skip(_UNKNOWN)
    certain = _reads_from_the_start(sync)
    try:
        intake.check_events(events if certain else _newest(changes), "")
    except InputError as error:
        check = replace(_CHECK, place=str(error.context.get("collection", "")))
        finding = check.failure if certain else check.warning
        return finding(error.message, _READ if certain else _PERHAPS_READ, error.advice)
    if not has_markers:  # a connector writes BEGIN before the first change
        return _CHECK.warning(*_NO_MARKER)
    return _CHECK.good("the newest changes name their source transactions")


def _unmatched_topic(sync: Sync, events: pa.Table) -> str:
    """The first transaction topic of the connectors in `events` that the file's topics leave out; "" without one."""
    names = sorted({str(name) for name in events[SOURCE_PARTITION].to_pylist() if name is not None})
    topics = (f"{name}.{sync.assembly.marker_topic}" for name in names)
    return next((topic for topic in topics if re.fullmatch(sync.topics, topic) is None), "")


def _events(assembly: MessageAssembly, messages: Sequence[KeyedMessage]) -> pa.Table:
    """The changes and markers among the messages; all else is for the query to judge."""
    lines, count = assembly.lenient().lines, len(messages)
    columns = {
        VALUE: pa.array([value for _, value in messages], pa.binary()),
        KEY: pa.array([key for key, _ in messages], pa.binary()),
        # In the topic of markers a message with an operation is a change all the same.
        "topic": pa.array([assembly.marker_topic] * count, pa.string()),
        "partition": pa.array([0] * count, pa.int32()),
        "offset": pa.array(range(count), pa.int64()),
        intake.TIMESTAMP: pa.nulls(count, pa.int64()),
    }
    needed = [name for name in columns if name in lines.columns]
    return lines.parse(pa.record_batch([columns[name] for name in needed], needed)).events


def _newest(changes: pa.Table) -> pa.Table:
    """The first change of each connector."""
    sources = changes[SOURCE_PARTITION].to_pylist()
    return changes.take(pa.array([sources.index(source) for source in dict.fromkeys(sources)], pa.int64()))


def _reads_from_the_start(sync: Sync) -> bool:
    """Whether the query certainly reads the oldest messages: nothing sets another start, and it has not begun.

    A micro-batch that failed is no beginning. Only a local checkpoint shows that none has ended.
    """
    starts = {name.lower(): value for name, value in sync.kafka.items() if name.lower().startswith("starting")}
    is_local = urlsplit(sync.checkpoint).scheme in ("", "file")
    return is_local and starts == {"startingoffsets": "earliest"} and checkpoint_age(sync.checkpoint, 0.0) is None
