"""For all tests: how long an example takes says nothing about the code; and JVMs live for seconds."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("shared machines", deadline=None)
settings.load_profile("shared machines")

# The second compiler of a JVM that lives for seconds costs twice what it gives.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
