"""Scores documents with classifiers, for example of quality or subject."""
