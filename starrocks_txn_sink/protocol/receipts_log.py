"""The receipts' log: the positions of source partitions that each label made visible. Its table. Pure."""

from starrocks_txn_sink.protocol.ledger import Sql, identifier, own_table_ddl

LOG_TABLE = "_starrocks_txn_sink_receipts"

COLUMNS = (
    ("job", "VARCHAR(64) NOT NULL"),
    ("source_partition", "VARCHAR(1024) NOT NULL"),
    ("last_position", "BIGINT NOT NULL"),
    ("first_position", "BIGINT NOT NULL"),
    ("source_transactions", "BIGINT"),
    ("row_count", "BIGINT"),
    ("label", "VARCHAR(128)"),
    ("lane", "INT"),
    ("batch", "BIGINT"),
    ("tables", "VARCHAR(65533)"),
    ("loaded_at", "DATETIME"),
)


def create_table(database: str, replication: int | None = None) -> str:
    """The DDL; `replication` None leaves the number of replicas to the server."""
    keys = "`job`, `source_partition`, `last_position`"
    layout = f"DUPLICATE KEY ({keys}) DISTRIBUTED BY HASH (`source_partition`) BUCKETS 1"
    return own_table_ddl(identifier(database, LOG_TABLE), COLUMNS, layout, replication)


def delete_older(database: str, job: str, before: str) -> Sql:
    """Statement that deletes a job's rows loaded before `before` (a DATETIME literal)."""
    return f"DELETE FROM {identifier(database, LOG_TABLE)} WHERE job = %s AND loaded_at < %s", (job, before)
