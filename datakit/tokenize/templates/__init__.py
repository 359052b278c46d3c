"""Renders conversations with the chat template of a tokenizer, in a separate process with restricted rights."""
