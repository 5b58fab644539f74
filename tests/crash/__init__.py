"""Crash matrix: a real PySpark driver and the stand-in are killed or paused at each numbered step, and must recover."""
