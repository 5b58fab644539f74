"""Planted bugs: each one replaces a rule of the production code, and the checker must notice within some seeds.

Bugs that another mechanism makes harmless are listed in docs/inside/reliability.md instead of here.
"""

from . import (
    arrival,
    begins,
    bounded,
    debezium,
    keys,
    loads,
    manifests,
    one_label,
    outcomes,
    plain_rows,
    quarantine,
    recreated,
    repairs,
    rows,
    take_over,
)
from .planting import sabotage, seeds_needed
from .registry import BUGS

GROUPS = (
    take_over,
    outcomes,
    loads,
    rows,
    keys,
    plain_rows,
    quarantine,
    arrival,
    one_label,
    begins,
    manifests,
    debezium,
    recreated,
    repairs,
    bounded,
)
"""The modules that name bugs."""

__all__ = ["BUGS", "GROUPS", "sabotage", "seeds_needed"]
