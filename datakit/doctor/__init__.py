"""Checks, for `datakit doctor`, this machine, a root and a Ray cluster before a run."""
