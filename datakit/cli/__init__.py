"""Provides `main`, the console script; each command parses its arguments, calls a function and prints the result."""

from datakit.cli.app import main

__all__ = ["main"]
