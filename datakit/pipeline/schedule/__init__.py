"""Decides when each step of a recipe runs, and how a run with failed steps ends."""
