"""How deep the tests dig: of the examples and schedules of `make test-all`, `make test` takes a fifth.

The profile is chosen with pytest's option `--hypothesis-profile`: `deep`, or `half` for all tests with fewer examples.
What takes long however few the examples are is marked `deep`, and `make test` leaves it out.
"""

from __future__ import annotations

from hypothesis import settings

# How long an example takes says nothing about the code on machines that are shared.
settings.register_profile("quick", max_examples=20, deadline=None)
settings.register_profile("half", max_examples=50, deadline=None)
settings.register_profile("deep", max_examples=100, deadline=None)
settings.load_profile("quick")


def is_deep() -> bool:
    return settings.get_current_profile_name() != "quick"


def part() -> int:
    """Which part of all examples the profile takes: 1 for all of them, 2 for half, 5 for a fifth."""
    return {"deep": 1, "half": 2}.get(settings.get_current_profile_name(), 5)


def scaled(deep: int) -> int:
    """How many examples, schedules or random inputs of `deep` the profile takes."""
    return deep if part() == 1 else max(5, deep // part())


def examples(deep: int) -> settings:
    """For a Hypothesis test with a number of examples of its own."""
    return settings(max_examples=scaled(deep), deadline=None)
