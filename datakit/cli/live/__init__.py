"""Watches and limits runs while they run."""
