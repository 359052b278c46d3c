"""Holds the part of the loader that reads blocks ahead, keeps them in memory, assembles batches and counts."""
