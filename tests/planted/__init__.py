"""Bugs planted in pure modules, of the kinds that schedules do not show: values, keys, privacy, order.

Each is a change of a file's text, and names the tests that must notice it, in seconds.
"""
