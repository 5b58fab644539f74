"""The executor: a lane as a Spark task, its threads, its resources, its messages to the driver."""
