"""Compares the documents of each component exactly, and decides which of them are duplicates."""
