"""Checks that the files of a token cache match its manifest, without trusting either."""
