"""Seeded schedules of writers and faults on a virtual clock, run by the production core; see docs/reliability.md."""
