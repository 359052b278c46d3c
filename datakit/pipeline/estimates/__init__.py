"""Estimates a run from the amount of text: the priorities of its steps, and its time."""
