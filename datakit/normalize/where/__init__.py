"""Checks and evaluates a source's `where`, and decides the type in which `where` sees each column."""
