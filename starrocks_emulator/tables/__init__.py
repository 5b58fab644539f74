"""Tables and their rows: definitions, judging, staging, the DuckDB store."""
