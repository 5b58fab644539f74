"""The query port: connections, the leader frontend, the torn-read auditor."""
