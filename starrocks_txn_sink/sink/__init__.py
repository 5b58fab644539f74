"""The sink on the driver: `StarRocksSink`, its input projected in the JVM, the checks before the first load.

A data source's processes import single modules from here, so this module imports none.
"""
