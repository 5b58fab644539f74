"""For all tests: how long one example takes says something about the machine, not about the code."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("shared machines", deadline=None)
settings.load_profile("shared machines")
