"""Consolidation: writes the dataset without the removed documents."""
