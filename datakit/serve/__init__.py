"""Shows a root in a browser: its datasets, its runs (also while they are active) and its training runs."""

from datakit.serve.server import Settings, serve

__all__ = ["Settings", "serve"]
