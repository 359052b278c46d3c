"""Parses settings of a source that are more than plain values: paths, text forms, templates, splits and policies."""
