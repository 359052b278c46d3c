"""Implements the commands that train, evaluate and size models."""
