"""Folders with tiny models in the format of the model hub."""
