"""Reads the tables of finished annotate steps: totals, distributions and samples, to choose thresholds."""
