"""Token sources, their blocks and the sequences in them."""
