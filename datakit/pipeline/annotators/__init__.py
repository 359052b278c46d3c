"""Answers questions about the annotators of a recipe before a run starts."""
