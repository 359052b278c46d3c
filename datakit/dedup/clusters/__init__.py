"""Finds the connected components of the pairs that band keys propose."""
