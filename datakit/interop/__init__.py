"""Imports token caches from other programs' formats, and exports to them."""
