"""Finds the documents that share n-grams with the items of evaluation sets (docs/annotate/contamination.md)."""
