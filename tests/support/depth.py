"""How deep the tests dig: `make test` takes a fifth of the examples and schedules that `make test-all` takes.

The profile is chosen with pytest's option `--hypothesis-profile=deep`. What takes long however few the examples are is
marked `deep`, and `make test` leaves it out.
"""

from __future__ import annotations

from hypothesis import settings

# How long an example takes says nothing about the code on machines that are shared.
settings.register_profile("quick", max_examples=20, deadline=None)
settings.register_profile("deep", max_examples=100, deadline=None)
settings.load_profile("quick")


def is_deep() -> bool:
    return settings.get_current_profile_name() == "deep"


def scaled(deep: int) -> int:
    """How many examples, schedules or random inputs: `deep` in the deep profile, a fifth of it in the quick one."""
    return deep if is_deep() else max(5, deep // 5)


def examples(deep: int) -> settings:
    """For a Hypothesis test with a number of examples of its own."""
    return settings(max_examples=scaled(deep), deadline=None)
