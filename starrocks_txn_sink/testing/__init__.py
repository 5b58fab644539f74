"""What tests of and with this package use: the stand-in as a process, clocks, generators."""
