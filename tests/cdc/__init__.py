"""PostgreSQL → Debezium → Kafka → sink → emulator, all of them real but the last: tests and `make demo-cdc`."""
