"""Finds passages (lines and paragraphs) that occur several times, and marks their copies as spans."""
