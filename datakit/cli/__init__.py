"""Every command: parse, call one function, print. `main` is the console script."""

from datakit.cli.app import main

__all__ = ["main"]
