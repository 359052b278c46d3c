"""Finds the entries of lists: domains and parts of URLs, words and phrases of texts."""
