"""Writes, selects and restores checkpoints."""
