"""Shows and stores the events of a run."""
