"""Imports token caches from the Levanter and Megatron formats, and exports them to these formats, MDS and Lance."""
