"""Computes a run's metrics, writes them to trackers, and prints them on the screen."""
