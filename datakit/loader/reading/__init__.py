"""Reads and assembles batches: read-ahead, block pool, metrics."""
