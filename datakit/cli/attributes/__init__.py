"""Implements the commands of the group `datakit attributes`."""
