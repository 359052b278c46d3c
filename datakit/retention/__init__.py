"""Decides which parts of a root are still needed, removes the others, and measures disk use."""
