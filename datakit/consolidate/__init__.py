"""Writes the dataset without the documents that dedup marked for removal."""
