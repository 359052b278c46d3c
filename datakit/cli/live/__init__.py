"""Shows the progress of active runs, and ends commands at their time limit."""
