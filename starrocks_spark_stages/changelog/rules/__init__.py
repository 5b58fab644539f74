"""All rules of the changelog functions, as pure functions over plain values: no Spark, no clock, no I/O."""
