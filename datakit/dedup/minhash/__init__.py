"""minhash."""
