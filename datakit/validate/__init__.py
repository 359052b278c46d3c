"""Checks that the files of a token cache or of any other finished step match its manifest, without trusting either."""
