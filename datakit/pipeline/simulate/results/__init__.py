"""Simulates the tasks of stages."""
