"""Finds equal substrings of documents: all parts of a given length that occurred before, wherever they begin."""
