"""Reads the documents of a cache: one at a time, in slices, and as Arrow record batches."""
