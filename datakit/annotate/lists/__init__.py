"""Finds entries of lists: domains and substrings in URLs; words, phrases and substrings in texts."""
