"""Reads the lists of the rows that leave the dataset. The stage `select` writes these lists, and other stages apply
them.
"""
