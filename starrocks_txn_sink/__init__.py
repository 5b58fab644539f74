"""Whole source transactions from PySpark Structured Streaming into several StarRocks tables, atomically."""
