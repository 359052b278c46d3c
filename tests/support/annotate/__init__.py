"""Helpers for the tests of `datakit/annotate/`."""
