"""Shuffles rows between tasks through files."""
