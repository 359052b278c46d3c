"""Turns the raw files of a source into Parquet files of documents, sorted by id and without exact duplicates."""
