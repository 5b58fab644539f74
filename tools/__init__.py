"""Generators: pages, dashboard, alert rules and runbook are made from the code. No part of the package."""
