"""download."""
