"""A real Kafka broker for tests and benchmarks: fetched by Maven, started on free loopback ports, stopped again."""
