"""Checks the files and the manifest of a token cache, or of any other finished step, against each other."""
