"""Balanced reading of Kafka: a data source whose partitions progress together in event time."""
