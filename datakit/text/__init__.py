"""Provides the text processing that several stages share: Unicode words, shingles and hashes."""
