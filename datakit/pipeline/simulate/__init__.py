"""Simulates a run of a recipe on data and machines that do not exist, with the real planner and scheduler."""
