"""Inspects raw sources before a run, and drafts recipes for them."""
