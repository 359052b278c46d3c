"""Implements `datakit rules show`, `datakit rules preview` and `datakit rules sets`."""
