"""Defines a mixture and computes the order in which its sequences are read."""
