"""Decides the columns of normalize's output and their types, from the columns of all files of a source."""
