"""For all tests: how long an example takes says nothing about the code; and JVMs live for seconds."""

from __future__ import annotations

import os

from hypothesis import settings

from tests import jvm

settings.register_profile("shared machines", deadline=None)
settings.load_profile("shared machines")

os.environ.setdefault("JDK_JAVA_OPTIONS", jvm.options())
