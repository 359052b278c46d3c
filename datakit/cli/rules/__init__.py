"""Implements `datakit rules show` and `datakit rules preview`."""
