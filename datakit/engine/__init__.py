"""Runs the tasks of a step in isolated processes, and makes sure that nothing is lost. Knows nothing about text."""
