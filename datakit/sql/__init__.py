"""Checks SQL expressions of recipes, and sets up the database that evaluates them."""
