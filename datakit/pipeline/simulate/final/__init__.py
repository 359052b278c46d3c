"""Simulates what select does after texts are edited."""
