"""Helpers for the tests of reports: finished datasets made of manifests and ledgers alone, and a headless browser."""
