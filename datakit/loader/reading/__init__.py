"""Holds the reading half of the loader: read-ahead, the pool of blocks, the assembly of batches, and metrics."""
