"""Seeded schedules of writers and faults on a virtual clock, run by the production core: docs/inside/reliability.md."""
