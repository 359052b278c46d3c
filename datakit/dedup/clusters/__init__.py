"""Finds the connected components of documents that share band keys."""
