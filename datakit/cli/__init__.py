"""The command line: each command parses its arguments, calls a function and prints. `main` is the console script."""

from datakit.cli.app import main

__all__ = ["main"]
