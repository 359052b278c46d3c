"""Defines the format of the token cache, and reads and writes token caches."""
