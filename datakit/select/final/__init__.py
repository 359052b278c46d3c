"""Applies what a recipe demands after texts are edited: rules, the drop of equal texts, and document buckets."""
