"""Validation: proves that stored output matches its manifest, without trusting either."""
