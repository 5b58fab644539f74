"""All rules of the changelog functions, as pure functions over plain values: no Spark, no clock, no I/O."""

from starrocks_txn_sink.changelog.decode import Decoded, decode, decode_with_previous
from starrocks_txn_sink.changelog.encode import Encoded, Event, ImageEncoder, encode
from starrocks_txn_sink.changelog.final_change import REMOVE, UPSERT, final_changes
from starrocks_txn_sink.changelog.kinds import DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE, Change, RowKind
from starrocks_txn_sink.changelog.mapping import OpMapping, code_to_kinds, kinds_to_code, pairs_updates
from starrocks_txn_sink.changelog.materialize import Kept, Materialized, materialize, needs_materializer
from starrocks_txn_sink.changelog.net_effect import net_effect
from starrocks_txn_sink.changelog.normalize import Normalized, normalize
from starrocks_txn_sink.changelog.reorder import Released, Timed, release
from starrocks_txn_sink.changelog.retention import Retention

__all__ = [
    "DELETE",
    "INSERT",
    "REMOVE",
    "UPDATE_AFTER",
    "UPDATE_BEFORE",
    "UPSERT",
    "Change",
    "Decoded",
    "Encoded",
    "Event",
    "ImageEncoder",
    "Kept",
    "Materialized",
    "Normalized",
    "OpMapping",
    "Released",
    "Retention",
    "RowKind",
    "Timed",
    "code_to_kinds",
    "decode",
    "decode_with_previous",
    "encode",
    "final_changes",
    "kinds_to_code",
    "materialize",
    "needs_materializer",
    "net_effect",
    "normalize",
    "pairs_updates",
    "release",
]
