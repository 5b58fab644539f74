"""The suites of this project against a real StarRocks in a container; see docs/inside/conformance.md."""
