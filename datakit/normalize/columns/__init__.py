"""Derives the columns of normalize's output, and their types, from the columns in all files of a source."""
