"""Commands for operators: doctor, audit, where, recover, dead letters."""
