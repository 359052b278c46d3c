"""The subcommands of `datakit ferry`: `run`, `list` and `history`."""
