"""Imports token caches from the formats of Levanter and Megatron, and exports them to that of Megatron."""
