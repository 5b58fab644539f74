"""`format("balanced_kafka")`: the Spark source that reads Kafka balanced in event time."""
