"""Runs the command-line interface for `python -m datakit`."""

import sys

from datakit.cli import main

if __name__ == "__main__":
    sys.exit(main())
