"""Hostile trees for tests: data that strangers could have made, a command on each, and how the command must end."""
