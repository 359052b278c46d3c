"""Computes quality heuristics of documents as numbers, from which rules make verdicts."""
