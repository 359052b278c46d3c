"""Decides which steps of a recipe run when, and how a run ends in which steps have failed."""
