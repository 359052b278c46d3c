"""Compiled loops of the annotator `heuristics`: one row of counts per document."""
