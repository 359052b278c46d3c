"""Draws figures of token caches, mixtures and training runs."""
