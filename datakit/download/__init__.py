"""Listing and download of the files of a source."""
