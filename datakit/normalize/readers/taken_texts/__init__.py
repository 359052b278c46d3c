"""Takes the texts out of chunks of JSON Lines."""
