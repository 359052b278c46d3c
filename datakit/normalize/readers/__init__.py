"""Reads raw files of every supported format in chunks of a few MiB."""
