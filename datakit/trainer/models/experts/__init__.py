"""Computes routed experts: the backends, and the order of rows that they share."""
