"""Predicts what a run will do, from the amount of text: the order of its steps, and its time."""
