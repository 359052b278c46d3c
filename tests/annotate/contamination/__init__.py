"""Tests of `datakit/annotate/contamination/`."""
