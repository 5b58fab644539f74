"""PostgreSQL → Debezium → Kafka → sink → stand-in, all of them real but the last: tests and `make demo-cdc`."""
