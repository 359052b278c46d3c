"""Records the outcome of every attempt, for resuming a run and for displaying its status."""
