"""Checks and evaluates a source's `where`, and decides the types in which this predicate sees columns."""
