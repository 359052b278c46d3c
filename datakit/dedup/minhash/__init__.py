"""Computes MinHash signatures, which are used to find pairs of similar documents."""
