"""Runs the steps of a training run: steps in flight, saves and evaluations, signals, traces, and the end of a run."""
