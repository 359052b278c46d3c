"""Validation: proves that stored output is what its manifest says, without trusting either."""
