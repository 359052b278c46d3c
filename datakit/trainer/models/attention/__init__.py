"""Computes attention: the backends, and the choice between them."""
