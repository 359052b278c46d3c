"""Judges components that are too large for one task, block by block, with many tasks."""
