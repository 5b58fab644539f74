"""Commands for operators: doctor, where, recover, dead letters."""
