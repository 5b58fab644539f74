"""Tables that follow their source: which statements give them what rows need, and how these are carried out."""
