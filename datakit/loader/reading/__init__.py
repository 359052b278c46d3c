"""Reads the batches' data ahead, keeps blocks in a pool, assembles batches from them, and collects metrics."""
