"""Checks of a training run: its checkpoints, its metrics and its batches."""
