"""Sizes models and runs for a compute budget."""
