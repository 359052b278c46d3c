"""Reads archives that hold many records: tar files of samples in the form of WebDataset."""
