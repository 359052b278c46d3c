"""Defines token sources, divides them into blocks, chooses held-out documents, and reads the sequences of a block."""
