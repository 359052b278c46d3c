"""Runs attempts on this machine: fork server, child processes, memory limits."""
