"""Computes a run's metrics and writes them to trackers and the screen."""
