"""The command line: each command parses, calls one function and prints. `main` is the console script."""

from datakit.cli.app import main

__all__ = ["main"]
