"""Evaluates a model on validation sets: losses, bits per byte, and the names of these metrics."""
