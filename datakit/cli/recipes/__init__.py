"""Holds the commands that list, describe and write recipes."""
