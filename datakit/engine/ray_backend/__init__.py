"""Runs attempts on a Ray cluster."""
