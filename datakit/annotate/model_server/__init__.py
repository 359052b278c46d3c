"""An annotator that asks a model server about each document, and keeps the answers."""
