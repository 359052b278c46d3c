"""Reads files that hold one JSON array of records."""
