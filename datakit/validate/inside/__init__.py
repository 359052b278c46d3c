"""Checks of a single step: its files, its manifest, and what each file holds."""
