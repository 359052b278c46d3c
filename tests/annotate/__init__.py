"""Tests of `datakit/annotate/`."""
