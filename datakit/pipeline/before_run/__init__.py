"""The checks that are made before the first step of a run."""
