"""Checks a source's `where`, and decides the types in which it sees the columns of the source."""
