"""Implements the stages `tokenize` and `train-tokenizer`."""
