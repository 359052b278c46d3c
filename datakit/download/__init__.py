"""Lists and downloads the files of a source."""
