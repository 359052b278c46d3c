"""Implements `datakit plan --simulate`."""
