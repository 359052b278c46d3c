"""Models: one file each, complete; a variant is a copy of one of them."""
