"""Evaluates the rules of a recipe: which documents each one applies to, and which rule decides."""
