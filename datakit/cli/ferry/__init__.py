"""The commands of ferries: `datakit ferry run`, `list` and `history`."""
