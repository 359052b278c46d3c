"""Figures of caches, mixtures and training runs."""
