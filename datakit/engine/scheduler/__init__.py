"""Decides which attempts run, when, and with how much memory, and what happens after a failure."""
