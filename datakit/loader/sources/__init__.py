"""What the loader reads from: token sources, their blocks and the sequences in them."""
