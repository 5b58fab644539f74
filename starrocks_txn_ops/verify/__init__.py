"""`starrocks-txn-sink verify`: compares each table in StarRocks with its source, at one position of the source."""
