"""Checks of a step against the steps from which it was made."""
