"""Prefetches the data of batches, keeps blocks in a pool, assembles batches from them, and collects metrics."""
