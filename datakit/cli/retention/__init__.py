"""Implements `datakit gc`, `datakit pin`, `datakit unpin` and `datakit du`."""
