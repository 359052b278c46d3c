"""Implements the checks of `datakit doctor`, which examine this machine, a root and a Ray cluster before a run."""
