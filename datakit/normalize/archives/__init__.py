"""Prepares the reading of web archives (`readers/web/`): where large ones are cut, and what must be installed."""
