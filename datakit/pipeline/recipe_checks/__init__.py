"""Checks the tables of a recipe against one another."""
