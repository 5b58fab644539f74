"""The protocol of one StarRocks transaction: its name, its steps, its outcome, and what refusals mean."""
