"""Reads the records of raw files in every supported format, in chunks of a few MiB."""
