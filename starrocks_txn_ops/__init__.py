"""The command line `starrocks-txn-sink`, and the operations behind its commands. The sink imports nothing from here."""
