"""Checks and evaluates a source's `where`, and decides the types in which it sees the source's columns."""
