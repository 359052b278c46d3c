"""The token cache: its format, reader and writer."""
