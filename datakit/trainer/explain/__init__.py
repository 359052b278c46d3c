"""Traces a loss spike to documents: replays a step, measures each document of its batch, and trains without some."""
