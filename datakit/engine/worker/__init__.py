"""Runs attempts in forked child processes on this machine, limits their memory, and determines how each one ended."""
