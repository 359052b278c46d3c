"""Consolidation: the dataset without its removals."""
