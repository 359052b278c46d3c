"""Reads the files of Git repositories at a revision."""
