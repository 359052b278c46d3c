"""Reads MediaWiki's XML dumps."""
