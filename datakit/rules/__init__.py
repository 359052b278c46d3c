"""Decides, by the rules of a recipe, which documents leave the dataset before duplicates are searched for."""
