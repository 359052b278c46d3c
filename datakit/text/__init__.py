"""Text processing shared by stages: Unicode words, shingles, hashes."""
