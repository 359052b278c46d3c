"""Writes, checks, selects and restores the checkpoints of training runs."""
