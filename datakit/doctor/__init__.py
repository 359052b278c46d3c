"""The checks of `datakit doctor`."""
