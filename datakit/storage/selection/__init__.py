"""Reads the lists of the rows that leave the dataset, which the stage `select` writes and other stages apply."""
