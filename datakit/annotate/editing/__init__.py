"""Edits texts: masks and cuts spans."""
