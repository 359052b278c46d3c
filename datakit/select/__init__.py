"""Decides which normalized documents leave the dataset, and lists them with the reasons."""
