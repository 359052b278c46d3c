"""Holds the token sources, their division into blocks, and the reading of the sequences in a block."""
