"""Runs annotators that are functions of the user (docs/annotate/user.md)."""
