"""Reading Kafka: options for Spark's own source, and `format("balanced_kafka")`, balanced in event time."""
