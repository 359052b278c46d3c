"""Locks the directory of a training run, records the run's settings in it, and finds runs by their names."""
