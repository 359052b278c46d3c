"""Records the outcome of every attempt, for resuming and for status displays."""
