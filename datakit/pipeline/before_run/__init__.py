"""Checks that happen before the first step of a run."""
