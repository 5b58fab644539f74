"""Spark on more than one JVM: a standalone cluster on loopback, its executors, workers and drivers killed."""
