"""Runs, models and optimizers for the trainer's tests."""
