"""Holds the rule sets that come with datakit, and expands the sets that a recipe names into their rules."""
