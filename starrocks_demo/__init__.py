"""The main job on the embedded emulator: seeded source transactions in, a concurrent reader, a final comparison."""
