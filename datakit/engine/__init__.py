"""Runs the tasks of a step in child processes, retries failed ones, and keeps finished results across crashes. No code
in this package is specific to text.
"""
