"""Computes MinHash signatures, which propose pairs of similar documents."""
