"""Task functions that show which child they run in and what it uses."""
