"""Implements `datakit ls` and `datakit diff`."""
