"""Finds personal data and secrets (addresses, numbers, keys) in texts, and edits texts at the places found."""
