"""The embedded StarRocks stand-in: frontend, backend and query port over a DuckDB store, for tests and the demo."""
