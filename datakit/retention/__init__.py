"""Decides which steps of a root are still needed, and removes what is not; also measures disk use."""
