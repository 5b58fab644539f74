"""All rules of the changelog functions, as pure functions over plain values: no Spark, no clock, no I/O."""

from starrocks_txn_sink.changelog.decode import DecodeResult, decode, decode_with_previous
from starrocks_txn_sink.changelog.encode import ChangeEvent, EncodeResult, ImageEncoder, encode
from starrocks_txn_sink.changelog.final_change import REMOVE, UPSERT, final_changes
from starrocks_txn_sink.changelog.kinds import DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE, RowChange, RowKind
from starrocks_txn_sink.changelog.mapping import OpMapping, code_to_kinds, kinds_to_code, pairs_updates
from starrocks_txn_sink.changelog.materialize import ClaimingRow, MaterializeResult, materialize, needs_materializer
from starrocks_txn_sink.changelog.net_effect import net_effect
from starrocks_txn_sink.changelog.normalize import NormalizeResult, normalize
from starrocks_txn_sink.changelog.reorder import ReleaseResult, TimedRow, release
from starrocks_txn_sink.changelog.retention import Retention

__all__ = [
    "DELETE",
    "INSERT",
    "REMOVE",
    "UPDATE_AFTER",
    "UPDATE_BEFORE",
    "UPSERT",
    "ChangeEvent",
    "ClaimingRow",
    "DecodeResult",
    "EncodeResult",
    "ImageEncoder",
    "MaterializeResult",
    "NormalizeResult",
    "OpMapping",
    "ReleaseResult",
    "Retention",
    "RowChange",
    "RowKind",
    "TimedRow",
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
