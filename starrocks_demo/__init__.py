"""The main job on the embedded stand-in: seeded source transactions in, a concurrent reader, a final comparison."""
