"""Decides which attempts run, when, with how much memory, and what follows a failure."""
