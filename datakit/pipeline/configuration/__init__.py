"""Decodes a recipe into the settings of each stage, and reports the mistakes in its tables."""
