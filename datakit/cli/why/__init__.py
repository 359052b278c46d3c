"""Implements `datakit why`."""
