"""Reads fastText models and applies them to columns of text, without the fastText library."""
