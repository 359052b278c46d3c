"""Implements `datakit validate`."""
