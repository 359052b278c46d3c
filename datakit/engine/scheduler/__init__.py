"""Decides which attempts run, when, with how much memory, and what happens after a failure."""
