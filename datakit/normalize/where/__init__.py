"""Checks and evaluates a source's `where`, and decides which type each column has in it."""
