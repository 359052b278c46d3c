"""Reads the files of Git repositories at a revision, or the commits that lead to it."""
