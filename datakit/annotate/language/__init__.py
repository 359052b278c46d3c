"""Identifies the language of documents with a fastText model, and counts the scripts of their letters."""
