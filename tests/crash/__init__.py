"""Crash matrix: a real PySpark driver and the emulator are killed or paused at each numbered step, and must recover."""
