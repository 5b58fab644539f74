"""Typed columns: which Spark type fits which StarRocks column, how values become JSON in the JVM, what is refused."""
